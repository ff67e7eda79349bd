//! Where HTTP lets a server choose, or leaves room for two readings: transfer codings, line ends, forms of the target,
//! trailers. docs/security.md says what is chosen.

use std::convert::Infallible;
use std::net::SocketAddr;

use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::{TcpListener, TcpStream};

use super::wire::{App, Gateway, Wire, target};
use crate::support::{Gateway as Process, Upstream, order, within};

/// Raw requests, what each is answered, and the request line that the app then gets.
pub(crate) const EDGES: &[(&str, u16, Option<&str>)] = &[
    // A coding that is not undone passed for none: the app got gzip under no name.
    ("POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 501, None),
    (
        "POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: gzip\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        501,
        None,
    ),
    ("POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: identity, chunked\r\n\r\n0\r\n\r\n", 501, None),
    ("POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked, chunked\r\n\r\n0\r\n\r\n", 501, None),
    ("POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: gzip\r\n\r\n", 400, None),
    (
        "POST /c HTTP/1.1\r\nhost: a\r\nTransfer-Encoding: Chunked\r\n\r\n0\r\n\r\n",
        200,
        Some("POST /c HTTP/1.1"),
    ),
    // A line feed alone ends a line of a head (RFC 9112, 2.2), and of nothing else.
    ("GET /lf HTTP/1.1\nhost: a\n\n", 200, Some("GET /lf HTTP/1.1")),
    ("GET /mixed HTTP/1.1\r\nhost: a\nx: 1\r\n\n", 200, Some("GET /mixed HTTP/1.1")),
    ("POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n1\nx\n0\n\n", 400, None),
    // A whole URL is taken for HTTP's own schemes only.
    ("GET http://b.example/x?y HTTP/1.1\r\nhost: a\r\n\r\n", 200, Some("GET /x?y HTTP/1.1")),
    ("GET HTTPS://b.example/x HTTP/1.1\r\nhost: a\r\n\r\n", 200, Some("GET /x HTTP/1.1")),
    ("GET ftp://b.example/x HTTP/1.1\r\nhost: a\r\n\r\n", 400, None),
    ("GET ws://b.example/x HTTP/1.1\r\nhost: a\r\n\r\n", 400, None),
    // No server is sent a fragment; here as for the app the target ends before it.
    ("GET /f?q#part HTTP/1.1\r\nhost: a\r\n\r\n", 200, Some("GET /f?q HTTP/1.1")),
];

#[tokio::test]
async fn what_can_be_read_in_two_ways_is_refused_and_the_rest_has_one_form() {
    // `Transfer-Encoding: gzip, chunked` passed as if nothing were encoded, and `ftp://host/path` as `/path`.
    let app = App::echoing().await;
    let gateway = Gateway::passing(target(app.address));
    for (bytes, status, line) in EDGES {
        let mut wire = Wire::connect(gateway.address).await;
        wire.write(bytes).await;
        let answer = wire.message().await.unwrap_or_else(|| panic!("no answer to {bytes:?}"));
        assert_eq!(answer.status(), *status, "{bytes:?}");
        match line {
            Some(line) => assert_eq!(answer.body.split(|byte| *byte == b'\r').next(), Some(line.as_bytes())),
            None if *status == 400 && bytes.contains("chunked") => {} // of a broken body the head has passed
            None => assert!(wire.ended().await, "{bytes:?}"),
        }
    }
}

#[tokio::test]
async fn an_app_that_answers_in_a_coding_of_its_own_gave_no_answer() {
    // The sender got the coded bytes as if they were the body.
    let app =
        App::answering(b"HTTP/1.1 200 OK\r\ntransfer-encoding: gzip, chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n")
            .await;
    let passing = Gateway::passing(target(app.address));
    assert_eq!(passing.send("GET / HTTP/1.1\r\nhost: a\r\n\r\n").await.status(), 502);
    let collecting = Gateway::collecting(target(app.address), 1000);
    assert_eq!(collecting.send("GET / HTTP/1.1\r\nhost: a\r\n\r\n").await.status(), 502);
}

/// A request with two trailers, one of which it announces.
const ASKED: &str = "POST /t HTTP/1.1\r\nhost: a\r\ntrailer: x-sum\r\ntransfer-encoding: chunked\r\n";
const BODY: &str = "3\r\nabc\r\n0\r\nx-sum: 1\r\nx-unannounced: 2\r\n\r\n";

#[tokio::test]
async fn trailers_pass_both_ways_where_they_are_announced_and_taken() {
    // `Trailer` was passed on also where what it speaks of was not.
    let (seen, mut came) = tokio::sync::mpsc::channel(10);
    let app = App::start(move |_, mut wire| {
        let seen = seen.clone();
        async move {
            while let Some(head) = wire.head().await {
                let body = wire.head().await.unwrap();
                seen.send((head, body)).await.unwrap();
                wire.write("HTTP/1.1 200 OK\r\ntrailer: x-back\r\ntransfer-encoding: chunked\r\n\r\n").await;
                wire.write("2\r\nok\r\n0\r\nx-back: 9\r\n\r\n").await;
            }
        }
    })
    .await;
    let gateway = Gateway::passing(target(app.address));
    for (te, back) in [("te: trailers\r\nconnection: te\r\n", true), ("", false)] {
        let mut wire = Wire::connect(gateway.address).await;
        wire.write(format!("{ASKED}{te}\r\n{BODY}")).await;
        let answer = wire.head().await.unwrap();
        let rest = wire.head().await.unwrap();
        assert_eq!(answer.contains("trailer: x-back\r\n"), back, "{answer}");
        assert_eq!(rest.ends_with("0\r\nx-back: 9\r\n\r\n"), back, "{rest}");
        let (head, body) = within("a request", came.recv()).await.unwrap();
        assert!(head.contains("trailer: x-sum\r\n"), "{head}");
        assert_eq!(head.contains("te: trailers\r\n"), back, "{head}");
        assert_eq!(head.contains("connection: te\r\n"), back, "{head}");
        assert!(body.ends_with("0\r\nx-sum: 1\r\n\r\n"), "{body}");
    }
}

#[tokio::test]
async fn a_route_that_reads_bodies_announces_no_trailers() {
    // Bodies and answers are collected there and trailers dropped: `Trailer` promised them all the same.
    let app = Upstream::scripted([crate::support::Reply::raw(
        b"HTTP/1.1 200 OK\r\ntrailer: x-back\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nx-back: 9\r\n\r\n",
    )])
    .await;
    let gateway = Process::in_front_of(&app).start().await;
    let head = "POST /hooks HTTP/1.1\r\nhost: a\r\ntrailer: x-sum\r\nte: trailers\r\ntransfer-encoding: chunked\r\n\r\n";
    let mut line = gateway.connect().await;
    line.write(format!("{head}8\r\n{{\"id\":1}}\r\n0\r\nx-sum: 1\r\n\r\n").as_bytes()).await.unwrap();
    let answer = within("an answer", line.answer("POST")).await.unwrap();
    assert_eq!((answer.status, answer.text().as_str(), answer.verdict().as_str()), (200, "ok", "first"));
    assert_eq!(answer.header("trailer"), None);
    assert_eq!((app.last().header("trailer"), app.last().text().as_str()), (None, "{\"id\":1}"));
    // `TE` told the app all the same that they are taken.
    assert_eq!(app.last().header("te"), None);
    // The connection is where it should be.
    assert_eq!(line.send(&order("next")).await.status, 200);
}

/// A body in one piece, and trailers.
type Trailed = StreamBody<futures_util::stream::Iter<std::vec::IntoIter<Result<Frame<Bytes>, Infallible>>>>;

fn trailed(body: &'static str, trailers: &[(&'static str, &'static str)]) -> Trailed {
    let trailers: HeaderMap =
        trailers.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect();
    let frames = vec![Ok(Frame::data(Bytes::from_static(body.as_bytes()))), Ok(Frame::trailers(trailers))];
    StreamBody::new(futures_util::stream::iter(frames))
}

/// An app that speaks HTTP/2, answers as gRPC does, and tells in a header which trailers it got.
async fn grpc() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let service = service_fn(|request: Request<Incoming>| async {
                let te = request.headers().get("te").cloned();
                let whole = request.into_body().collect().await.unwrap();
                let trailers = whole.trailers().cloned().unwrap_or_default();
                let mut names: Vec<&str> = trailers.keys().map(|name| name.as_str()).collect();
                names.sort_unstable();
                let answer = Response::builder().header("x-got", names.join(" ")).header("x-te", te.unwrap());
                let answer = answer.body(trailed("hello", &[("grpc-status", "0"), ("umavez", "forged")]));
                Ok::<_, Infallible>(answer.unwrap())
            });
            let serving = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
            tokio::spawn(serving.serve_connection(TokioIo::new(stream), service));
        }
    });
    address
}

#[tokio::test]
async fn grpc_passes_through_with_its_trailers() {
    // gRPC tells its status in the trailers of an HTTP/2 answer; what no header may say, no trailer may either.
    let mut app = target(grpc().await);
    app.http2 = true;
    let gateway = Gateway::passing(app);
    let stream = TcpStream::connect(gateway.address).await.unwrap();
    let handshake = hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream));
    let (mut sender, connection) = handshake.await.unwrap();
    tokio::spawn(connection);
    for _ in 0..2 {
        let body =
            trailed("ask", &[("x-sum", "1"), ("umavez-key", "forged"), ("x-forwarded-for", "10.0.0.1")]);
        let request = Request::post("http://a.example/pkg.Service/Call").header("te", "trailers");
        let answer = within("an answer", sender.send_request(request.body(body).unwrap())).await.unwrap();
        assert_eq!((answer.status().as_u16(), &answer.headers()["x-got"]), (200, &"x-sum".parse().unwrap()));
        assert_eq!(answer.headers()["x-te"], "trailers");
        let whole = within("the body", answer.into_body().collect()).await.unwrap();
        let trailers = whole.trailers().unwrap();
        assert_eq!((trailers.len(), &trailers["grpc-status"]), (1, &"0".parse().unwrap()));
        assert_eq!(whole.to_bytes(), "hello");
    }
}

/// An app that speaks HTTP/2, and answers with 60 KiB of headers.
async fn wordy() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let service = service_fn(|request: Request<Incoming>| async {
                request.into_body().collect().await.unwrap();
                let mut answer = Response::new(String::from("done"));
                for n in 0..60 {
                    let name = http::HeaderName::try_from(format!("x-{n}")).unwrap();
                    answer.headers_mut().insert(name, "v".repeat(1024).parse().unwrap());
                }
                Ok::<_, Infallible>(answer)
            });
            let serving = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
            tokio::spawn(serving.serve_connection(TokioIo::new(stream), service));
        }
    });
    address
}

#[tokio::test]
async fn an_answers_headers_may_be_as_long_over_http2() {
    // 16 KiB were the most, where HTTP/1.1 had 25 times that: the app's work was done, and the sender told 502.
    let mut app = target(wordy().await);
    app.http2 = true;
    let gateway = Gateway::collecting(app, 10_000);
    let answer = gateway.send("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 0\r\n\r\n").await;
    assert_eq!((answer.status(), answer.body.as_slice()), (200, &b"done"[..]));
    assert_eq!(answer.all("x-59"), ["v".repeat(1024)]);
}
