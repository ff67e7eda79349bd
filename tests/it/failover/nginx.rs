//! Two nodes behind a real nginx, which spreads the copies of each event over both.

use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use super::addresses;
use crate::support::{
    Gateway, Load, ORDERS, Pair, Reply, Stores, Upstream, eventually, forwards, order, send_all,
};

/// What nginx does by itself: a request that was sent to a node isn't sent to another.
const NEXT_BY_DEFAULT: &str = "";
/// What some write to be safe: whatever went wrong, the next node gets the request.
const NEXT_WHATEVER: &str = "proxy_next_upstream error timeout non_idempotent http_502 http_503 http_504; proxy_next_upstream_tries 2;";

/// A balancer in front of nodes. Dropped, it is killed.
struct Nginx {
    address: SocketAddr,
    process: Child,
    _folder: tempfile::TempDir,
}

impl Nginx {
    async fn in_front_of(nodes: &[Gateway], next: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let address = crate::support::nobody();
        let servers: String = addresses(nodes)
            .iter()
            .map(|node| format!("server {node} max_fails=1 fail_timeout=1s;"))
            .collect();
        let config = format!(
            "daemon off; master_process off; pid nginx.pid; error_log error.log;\n\
             events {{ worker_connections 1024; }}\n\
             http {{ access_log off; client_body_temp_path body; proxy_temp_path proxy;\n\
             fastcgi_temp_path fastcgi; uwsgi_temp_path uwsgi; scgi_temp_path scgi;\n\
             upstream umavez {{ {servers} keepalive 32; }}\n\
             server {{ listen {address} backlog=1024; location / {{ proxy_pass http://umavez;\n\
             proxy_http_version 1.1; proxy_set_header Connection \"\"; proxy_set_header Host $http_host;\n\
             proxy_connect_timeout 1s; {next} }} }} }}\n"
        );
        std::fs::write(folder.path().join("nginx.conf"), config).unwrap();
        let process = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", "--", "/usr/sbin/nginx", "-c", "nginx.conf", "-p"])
            .arg(folder.path())
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let nginx = Self { address, process, _folder: folder };
        eventually("nginx to listen", async || tokio::net::TcpStream::connect(address).await.is_ok()).await;
        nginx
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        self.process.kill().ok();
        self.process.wait().ok();
    }
}

async fn nodes(upstream: &Upstream, stores: &Stores, on_unknown: &str) -> [Gateway; 2] {
    let route = format!(
        "{ORDERS}timeout = \"1s\"\nlease = \"3s\"\nin_flight_wait = \"500ms\"\non_unknown = \"{on_unknown}\"\n"
    );
    super::two_nodes(upstream, &stores.toml(), &route).await
}

#[tokio::test]
async fn copies_that_nginx_spreads_over_two_nodes_have_one_effect_each() {
    let stores = Stores::open(Pair::RedisPostgres).await;
    let upstream = Upstream::answering(201, "made").await;
    let nodes = nodes(&upstream, &stores, "retry").await;
    let nginx = Nginx::in_front_of(&nodes, NEXT_BY_DEFAULT).await;
    for round in 0..10 {
        let deliveries = (0..100).map(|n| (nginx.address, order(&format!("{round}-{}", n % 5)))).collect();
        for answer in send_all(deliveries).await {
            assert_eq!((answer.status, answer.text().as_str()), (201, "made"));
        }
    }
    let forwards = forwards(&upstream);
    assert_eq!(forwards.len(), 50);
    assert!(forwards.values().all(|attempts| *attempts == [1]), "{forwards:?}");
    for node in &nodes {
        let served = node.metrics().await.value("umavez_requests_total", &[("route", "orders")]);
        assert!(served > 200.0, "nginx gave one node {served} of 1000");
    }
}

#[tokio::test]
async fn a_node_killed_behind_nginx_loses_nothing_and_doubles_only_what_it_left_unknown() {
    let books = killed_under_load("retry", NEXT_BY_DEFAULT).await;
    assert!(books.parked.is_empty(), "{books:?}");
    // What was under way on the node that died, and nothing else; each after its lease, and counted as a retry.
    assert!(books.doubled.len() <= Load::AT_ONCE, "{books:?}");
    assert!(books.doubled.iter().all(|(_, attempts)| *attempts == [1, 2]), "{books:?}");
}

#[tokio::test]
async fn a_node_killed_behind_nginx_doubles_nothing_on_a_route_that_holds() {
    // Nor does an nginx that sends to the other node what the dead one may have forwarded.
    let books = killed_under_load("hold", NEXT_WHATEVER).await;
    assert!(books.doubled.is_empty(), "{books:?}");
    assert!(books.parked.len() <= Load::AT_ONCE, "{books:?}");
}

async fn killed_under_load(on_unknown: &str, next: &str) -> crate::support::Books {
    let stores = Stores::open(Pair::RedisPostgres).await;
    let upstream = Upstream::deciding(|_, nth| {
        Reply::new(200, "done").after(Duration::from_millis([0, 3, 15, 40][nth % 4]))
    })
    .await;
    let mut nodes = nodes(&upstream, &stores, on_unknown).await;
    let nginx = Nginx::in_front_of(&nodes, next).await;
    let load = Load::on(vec![nginx.address]);
    load.carries(60).await;
    nodes[0].kill();
    load.carries(60).await;
    nodes[0].restart().await;
    load.carries(60).await;
    load.balance(&upstream).await
}
