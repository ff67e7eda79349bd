//! What matches no route: streamed both ways, upgrades included, or not found.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::support::{Delivery, Gateway, ORDERS, Reply, Upstream, order, within};

#[tokio::test]
async fn what_matches_no_route_streams_both_ways_in_bounded_memory() {
    let total: usize = 64 << 20;
    let chunk = vec![b'd'; 1 << 20];
    let mut download = Reply::raw(format!("HTTP/1.1 200 OK\r\nContent-Length: {total}\r\n\r\n").as_bytes());
    for _ in 0..total / chunk.len() {
        download = download.then(Duration::ZERO, &chunk);
    }
    let upstream = Upstream::scripted([download, Reply::new(200, "stored")]).await;
    let gateway = Gateway::in_front_of(&upstream).start().await;
    let (_, before) = gateway.memory();
    let answer = gateway.send(&Delivery::new("GET", "/file")).await;
    assert_eq!((answer.body.len(), answer.complete), (total, true));
    let upload = Delivery::new("PUT", "/file").body(vec![b'u'; total]).chunked();
    assert_eq!(gateway.send(&upload).await.text(), "stored");
    assert_eq!(upstream.last().body.len(), total);
    let (_, peak) = gateway.memory();
    assert!(peak - before < 24 * 1024, "grew by {} KiB", peak - before);
    assert_eq!(answer.headers_named("umavez"), Vec::<String>::new(), "no dedup, no verdict");
}

#[tokio::test]
async fn an_upgrade_passes_and_then_bytes_flow_both_ways() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let app = listener.local_addr().unwrap();
    let echo = tokio::spawn(async move {
        let (mut socket, _) = listener.accept().await.unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(socket.read_u8().await.unwrap());
        }
        let switching =
            b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\nhello";
        socket.write_all(switching).await.unwrap();
        let mut buffer = [0_u8; 64];
        loop {
            match socket.read(&mut buffer).await.unwrap() {
                0 => return String::from_utf8(head).unwrap(),
                n => socket.write_all(&buffer[..n]).await.unwrap(),
            }
        }
    });
    let gateway = Gateway::in_front_of_url(&format!("http://{app}")).start().await;
    let mut connection = gateway.connect().await;
    let ask = "GET /socket HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
    connection.write(ask.as_bytes()).await.unwrap();
    let head = within("101", connection.answer("GET")).await.unwrap();
    assert_eq!((head.status, head.headers_named("upgrade")), (101, vec!["websocket".to_owned()]));
    let (mut socket, mut read) = connection.into_socket();
    socket.write_all(b" world").await.unwrap();
    let mut buffer = [0_u8; 64];
    while read.len() < 11 {
        let n = within("the echo", socket.read(&mut buffer)).await.unwrap();
        assert_ne!(n, 0, "closed after {read:?}");
        read.extend_from_slice(&buffer[..n]);
    }
    assert_eq!(read, b"hello world");
    drop(socket);
    let seen = within("the app's end", echo).await.unwrap().to_lowercase();
    assert!(seen.contains("upgrade: websocket"), "{seen}");
}

#[tokio::test]
async fn what_matches_no_route_and_has_no_upstream_is_not_found() {
    let upstream = Upstream::answering(200, "").await;
    let route = format!("{ORDERS}upstream = \"{}\"\nhost = \"hooks.example\"\n", upstream.url());
    let gateway = Gateway::without_upstream().route(&route).start().await;
    assert_eq!(gateway.send(&Delivery::json("/elsewhere", "{}")).await.status, 404);
    assert_eq!(gateway.send(&order("1")).await.status, 404, "another host");
    assert_eq!(gateway.send(&order("1").header("Host", "hooks.example")).await.verdict(), "first");
}
