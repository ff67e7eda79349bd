//! HTTP/2 with prior knowledge, for the stories that need it: a client.

use std::net::SocketAddr;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpStream;

use super::within;

/// Sends one request on an HTTP/2 connection of its own.
pub(crate) async fn send(address: SocketAddr, request: http::Request<&'static str>) -> http::Response<Bytes> {
    let stream = TcpStream::connect(address).await.unwrap();
    let handshake = hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream));
    let (mut sender, connection) = handshake.await.unwrap();
    let driver = tokio::spawn(connection);
    let request = request.map(|body| Full::new(Bytes::from_static(body.as_bytes())));
    let answer = within("an HTTP/2 answer", sender.send_request(request)).await.unwrap();
    let (head, body) = answer.into_parts();
    let body = within("an HTTP/2 body", body.collect()).await.unwrap().to_bytes();
    driver.abort();
    http::Response::from_parts(head, body)
}
