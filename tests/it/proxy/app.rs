//! Where the app is: not up yet, recreated, or moved to another address under the same name.

use std::net::SocketAddr;

use crate::support::{Gateway, Reply, Upstream, nobody, order};

#[tokio::test]
async fn an_app_that_is_not_up_yet_costs_no_event() {
    // PRX-14, as far as one machine's resolver allows: the name is resolved for each connection, the gateway
    // starts while nobody answers there, and what is refused meanwhile is released.
    let address = nobody();
    let gateway = Gateway::in_front_of_url(&format!("http://localhost:{}", address.port())).start().await;
    assert_eq!(gateway.send(&order("d1")).await.status, 502);
    let unknown = Gateway::in_front_of_url("http://no-such-name.invalid:80").start().await;
    assert_eq!(unknown.send(&order("d1")).await.status, 502);
    let listener = tokio::net::TcpListener::bind(address).await.unwrap();
    let upstream = Upstream::on(listener, |_, _| Reply::new(200, "up"));
    assert_eq!(gateway.send(&order("d1")).await.text(), "up");
    // Recreated on the same name: old connections are gone, new ones are made.
    let address = upstream.stop().await;
    let mut told = Vec::new();
    let listener = tokio::net::TcpListener::bind(address).await.unwrap();
    let again = Upstream::on(listener, |_, _| Reply::new(200, "up again"));
    while told.last() != Some(&"up again".to_owned()) {
        told.push(gateway.send(&order("d2")).await.text());
        assert!(told.len() < 10, "{told:?}");
    }
    assert_eq!(again.received(), 1);
}

#[tokio::test]
async fn an_app_that_moved_is_found_at_its_new_address() {
    // PRX-14: the name was resolved once at start; after the handler's container was recreated every event got 502.
    let folder = tempfile::tempdir().unwrap();
    let hosts = folder.path().join("hosts");
    let names = |app: &str| std::fs::write(&hosts, format!("127.0.0.1 localhost\n{app}\n")).unwrap();
    names("");
    let old = tokio::net::TcpListener::bind("127.0.0.2:0").await.unwrap();
    let port = old.local_addr().unwrap().port();
    let setup = Gateway::in_front_of_url(&format!("http://app.test:{port}")).resolving_names_by(&hosts);
    let Some(setup) = setup else {
        eprintln!("not proven here: names can't be changed for one process on this machine");
        return;
    };
    let gateway = setup.start().await;
    assert_eq!(gateway.send(&order("early")).await.status, 502, "it starts although the name is unknown");
    names("127.0.0.2 app.test");
    let app = Upstream::on(old, |_, _| Reply::new(200, "old"));
    assert_eq!(gateway.send(&order("early")).await.text(), "old", "what was refused meanwhile was released");
    assert_eq!(gateway.send(&order("warm")).await.text(), "old");
    let left = app.stop().await;
    assert_eq!(left.ip(), SocketAddr::from(([127, 0, 0, 2], port)).ip());
    let new = tokio::net::TcpListener::bind(("127.0.0.3", port)).await.unwrap();
    let app = Upstream::on(new, |_, _| Reply::new(200, "new"));
    assert_eq!(gateway.send(&order("moving")).await.status, 502, "the old address refuses");
    names("127.0.0.3 app.test");
    assert_eq!(gateway.send(&order("moving")).await.text(), "new");
    assert_eq!(app.received(), 1);
}
