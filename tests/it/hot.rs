//! The hot store: one suite on both kinds, and what Redis may do to us.

use crate::support::redis::{Cluster, Redis, Reply, Sentinels};

#[tokio::test]
async fn servers_start() {
    let mut plain = Redis::start().await;
    assert_eq!(plain.command(&["SET", "a", "b"]).await, Reply::Simple("OK".into()));
    plain.restart().await;
    assert_eq!(plain.command(&["GET", "a"]).await, Reply::Nil);
    let _tls = Redis::builder().tls().start().await;
    let user = Redis::builder().acl_user("umavez", "pw").start().await;
    println!("{}", user.url());
    user.command(&["PING"]).await;
}

#[tokio::test]
async fn cluster_starts() {
    let cluster = Cluster::start().await;
    println!("{}", cluster.url());
}

#[tokio::test]
async fn sentinels_start() {
    let s = Sentinels::start().await;
    println!("{}", s.url());
}
