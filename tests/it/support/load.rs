//! Senders under way while a story makes trouble: event after event, each in copies and each until its 2xx, as providers
//! do. And the app's books: how often it was given each event.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use rand::seq::IndexedRandom as _;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::{Upstream, order, try_send, within};

/// The longest that one event may take to be accepted: an outage, a lease, and a busy machine.
const EVENT_MAX: Duration = Duration::from_secs(60);
const WORKERS: usize = 8;

/// Tries until 2xx, each time at a node of its own choice; the verdict that came with it.
pub(crate) async fn deliver(nodes: &[SocketAddr], id: &str) -> String {
    let mut told = Vec::new();
    let tries = async {
        loop {
            let node = *nodes.choose(&mut rand::rng()).unwrap();
            let answer = tokio::time::timeout(Duration::from_secs(12), try_send(node, &order(id))).await;
            match answer {
                Ok(Ok(answer)) if answer.complete && answer.is_success() => return answer.verdict(),
                Ok(Ok(answer)) => told.push(answer.status),
                Ok(Err(_)) | Err(_) => told.push(0),
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let verdict = tokio::time::timeout(EVENT_MAX, tries).await;
    verdict.unwrap_or_else(|_| panic!("no 2xx for {id} within {EVENT_MAX:?}: {told:?}"))
}

/// The attempts that the app saw of each event, in their order.
pub(crate) fn forwards(upstream: &Upstream) -> BTreeMap<String, Vec<u32>> {
    let mut forwards: BTreeMap<String, Vec<u32>> = BTreeMap::new();
    for request in upstream.requests() {
        let id = request.json()["id"].as_str().unwrap().to_owned();
        forwards.entry(id).or_default().push(request.attempt());
    }
    forwards
}

/// Eight senders at work.
pub(crate) struct Load {
    nodes: Vec<SocketAddr>,
    accepted: watch::Sender<usize>,
    over: watch::Sender<bool>,
    workers: Vec<JoinHandle<Vec<String>>>,
}

impl Load {
    /// How many events may be under way at once.
    pub(crate) const AT_ONCE: usize = WORKERS;

    /// Each event goes out in two copies at once, each to a node of its own choice.
    pub(crate) fn on(nodes: Vec<SocketAddr>) -> Self {
        let accepted = watch::Sender::new(0);
        let over = watch::Sender::new(false);
        let workers = (0..WORKERS)
            .map(|worker| tokio::spawn(work(worker, nodes.clone(), accepted.clone(), over.subscribe())))
            .collect();
        Self { nodes, accepted, over, workers }
    }

    /// Waits until this many more events were accepted.
    pub(crate) async fn carries(&self, more: usize) {
        let goal = *self.accepted.borrow() + more;
        let mut accepted = self.accepted.subscribe();
        within(&format!("{more} more events"), accepted.wait_for(|count| *count >= goal)).await.unwrap();
    }

    /// Stops, and balances: every event reached the app or is parked, and its later copy isn't forwarded.
    pub(crate) async fn balance(self, upstream: &Upstream) -> Books {
        self.over.send_replace(true);
        let mut sent = Vec::new();
        for worker in self.workers {
            sent.extend(worker.await.unwrap());
        }
        let received = upstream.received();
        let mut parked = Vec::new();
        for id in &sent {
            match deliver(&self.nodes, id).await.as_str() {
                "duplicate" => {}
                "held" => parked.push(id.clone()),
                other => panic!("{id}, accepted before, is {other}"),
            }
        }
        assert_eq!(upstream.received(), received, "a copy of an accepted event was forwarded");
        let forwards = forwards(upstream);
        let lost: Vec<_> =
            sent.iter().filter(|id| !forwards.contains_key(*id) && !parked.contains(id)).collect();
        assert!(lost.is_empty(), "{lost:?} are lost");
        let doubled = forwards.into_iter().filter(|(_, attempts)| attempts.len() > 1).collect();
        Books { doubled, parked }
    }

    /// As [`Self::balance`], where nothing excuses a second forward or a parked event.
    pub(crate) async fn balances_exactly(self, upstream: &Upstream) {
        let books = self.balance(upstream).await;
        assert!(books.doubled.is_empty() && books.parked.is_empty(), "{books:?}");
    }
}

/// What a balance showed besides events that happened once.
#[derive(Debug)]
pub(crate) struct Books {
    /// Events that the app was given more than once, with their attempts.
    pub(crate) doubled: Vec<(String, Vec<u32>)>,
    /// Events that wait for a person.
    pub(crate) parked: Vec<String>,
}

async fn work(
    worker: usize,
    nodes: Vec<SocketAddr>,
    accepted: watch::Sender<usize>,
    over: watch::Receiver<bool>,
) -> Vec<String> {
    let mut sent = Vec::new();
    while !*over.borrow() {
        let id = format!("{worker}-{}", sent.len());
        drop(tokio::join!(deliver(&nodes, &id), deliver(&nodes, &id)));
        sent.push(id);
        accepted.send_modify(|count| *count += 1);
    }
    sent
}
