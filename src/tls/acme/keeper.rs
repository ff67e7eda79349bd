//! Orders what is due, one name after the other, and decides when to try again. One process of those that share a
//! cache orders at a time; the others take what it has written.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::client::PutOff;
use super::order::{Failure, Kind, Session, blocking};
use super::{Acme, Cache};
use crate::clock::{self, Clock};
use crate::metrics;
use crate::tls::ListenerTls;

/// The longest that passes without a look at what is due: clocks are set, and laptops sleep.
const LOOK_EVERY: Duration = Duration::from_secs(3600);
/// Between two looks at what another process orders.
const BUSY_PAUSE: Duration = Duration::from_secs(5);
const LEAST_PAUSE: Duration = Duration::from_secs(1);

/// The longest that one order may take.
const ORDER_MAX: Duration = Duration::from_secs(300);

/// After a failure at the authority: four tries in the first hour, of the five that Let's Encrypt allows for a name.
const REFUSED_PAUSES: (Duration, Duration) = (Duration::from_secs(300), Duration::from_secs(12 * 3600));
/// After one that it did not hear of.
const UNREACHABLE_PAUSES: (Duration, Duration) = (Duration::from_secs(15), Duration::from_secs(3600));

/// What is known of one name's orders.
#[derive(Debug)]
struct Tries {
    /// In a row.
    failures: u32,
    /// Not before then.
    next: Option<Instant>,
    /// Nor before then: the directory asked for it.
    asked: Option<Instant>,
    /// How much earlier than it has to a renewal begins, in thousandths of a thirtieth of the certificate's life: not
    /// every name, and not every node, at once.
    spread: u64,
}

impl Tries {
    fn none() -> Self {
        Self { failures: 0, next: None, asked: None, spread: rand::random_range(0..1000) }
    }
}

struct Keeper {
    listener: Arc<ListenerTls>,
    /// Where `tries` were made.
    directory: String,
    /// By name.
    tries: HashMap<String, Tries>,
    /// Directories that asked, whatever the name, to be left alone; until then.
    left_alone: HashMap<String, Instant>,
    metrics: metrics::Orders,
}

/// Keeps a listener's ordered certificates fresh, for ever. Dropped, it leaves off; what was under way is ordered anew.
pub(crate) async fn keep(listener: Arc<ListenerTls>) {
    let (metrics, mut read) = (metrics::Orders::new(), listener.acme_read());
    let (directory, tries, left_alone) = (String::new(), HashMap::new(), HashMap::new());
    let mut keeper = Keeper { listener, directory, tries, left_alone, metrics };
    loop {
        let pause = match keeper.listener.acme() {
            Some(acme) => keeper.round(&acme).await,
            None => LOOK_EVERY,
        };
        let pause = pause.clamp(LEAST_PAUSE, LOOK_EVERY);
        tracing::debug!(seconds = pause.as_secs(), "until the next look at which certificates are due");
        tokio::select! {
            Ok(()) = read.changed() => keeper.try_at_once(),
            () = tokio::time::sleep(pause) => {}
        }
    }
}

impl Keeper {
    /// Orders what is due; how long nothing is.
    async fn round(&mut self, acme: &Acme) -> Duration {
        self.forget(acme);
        if self.due(acme).is_empty() {
            return self.until_due(acme);
        }
        let cache = Cache::of(acme);
        let locking = cache.clone();
        let locked = blocking(move || {
            locking.prepare().map_err(|trouble| nothing_kept(trouble.to_string()))?;
            locking.lock().map_err(|error| nothing_kept(format!("the cache can't be locked: {error}")))
        });
        let lock = match locked.await {
            Ok(Some(lock)) => lock,
            Ok(None) => return BUSY_PAUSE,
            Err(failure) => {
                let due = self.due(acme);
                self.all_failed(acme, &due, &failure);
                return self.until_due(acme);
            }
        };
        // Whoever had the lock before may have ordered what was due.
        self.take_what_is_kept().await;
        let due = self.due(acme);
        if !due.is_empty() {
            self.order(acme, &cache, due).await;
        }
        drop(lock);
        self.until_due(acme)
    }

    async fn order(&mut self, acme: &Acme, cache: &Cache, due: Vec<String>) {
        let put_off = PutOff::default();
        let mut session = match self.session(acme, cache, &put_off).await {
            Ok(session) => session,
            Err(failure) => return self.all_failed(acme, &due, &failure),
        };
        for (index, name) in due.iter().enumerate() {
            tracing::info!(name, directory = acme.directory, "ordering a certificate");
            put_off.take(); // of another name
            let mut ended = bounded(session.order(name)).await;
            if ended.as_ref().is_err_and(|failure| failure.kind == Kind::AccountUnknown) {
                session = match self.new_session(acme, cache, &put_off).await {
                    Ok(session) => session,
                    Err(failure) => {
                        return self.all_failed(acme, due.get(index..).unwrap_or_default(), &failure);
                    }
                };
                ended = bounded(session.order(name)).await;
            }
            let overloaded = ended.as_ref().is_err_and(|failure| failure.kind == Kind::Unreachable);
            match put_off.take().filter(|_| ended.is_err()) {
                Some(pause) if overloaded => self.leave_alone(&acme.directory, pause),
                asked => self.tries_of(name).asked = asked.and_then(from_now),
            }
            match ended {
                // There are other settings, and this is no news to them.
                ended if !self.orders(acme, name) => return self.count(ended.is_ok()),
                Ok(()) => self.ordered(acme, name).await,
                // The others would fare no better.
                Err(failure) if overloaded => {
                    return self.all_failed(acme, due.get(index..).unwrap_or_default(), &failure);
                }
                Err(failure) => self.failed(acme, name, &failure),
            }
            if self.listener.acme().as_ref() != Some(acme) {
                return; // there are other settings
            }
        }
    }

    /// Whether a name is still one of those that are ordered there.
    fn orders(&self, acme: &Acme, name: &str) -> bool {
        let now = self.listener.acme();
        now.is_some_and(|now| {
            let there = (&now.directory, &now.cache) == (&acme.directory, &acme.cache);
            there && now.names.iter().any(|now| now == name)
        })
    }

    /// One that is due again at once is not ordered for ever: something is wrong with it, or with the clock.
    async fn ordered(&mut self, acme: &Acme, name: &str) {
        self.take_what_is_kept().await;
        if self.orders(acme, name) && self.due_in(acme, name).is_zero() {
            let what = "the certificate that was signed is due for renewal already".to_owned();
            let mend =
                "see that this machine's clock is right, and how long the authority's certificates are valid";
            return self.failed(acme, name, &Failure { kind: Kind::Refused, what, mend });
        }
        self.count(true);
        self.tries.remove(name);
        self.listener.order_ended(&Cache::of(acme).pair(name), true);
    }

    async fn session(&mut self, acme: &Acme, cache: &Cache, put_off: &PutOff) -> Result<Session, Failure> {
        let opened = bounded(Session::open(acme, cache, put_off)).await;
        match opened {
            Err(failure) if failure.kind == Kind::AccountUnknown => {
                self.new_session(acme, cache, put_off).await
            }
            Err(failure) => {
                self.note(acme, put_off);
                Err(failure)
            }
            Ok(session) => Ok(session),
        }
    }

    async fn new_session(
        &mut self,
        acme: &Acme,
        cache: &Cache,
        put_off: &PutOff,
    ) -> Result<Session, Failure> {
        tracing::warn!(
            directory = acme.directory,
            "the directory does not know our account: a new one is made"
        );
        let aside = cache.clone();
        blocking(move || aside.put_account_aside().map_err(|error| nothing_kept(error.to_string()))).await?;
        let opened = bounded(Session::open(acme, cache, put_off)).await;
        if opened.is_err() {
            self.note(acme, put_off);
        }
        opened
    }

    /// What is on disk goes into use at once; the eye on the files would find it a little later.
    async fn take_what_is_kept(&self) {
        let listener = Arc::clone(&self.listener);
        let taken = tokio::task::spawn_blocking(move || listener.reload()).await;
        // What can't be read is said by whoever looks at the files, again and again until it is mended.
        drop(taken);
    }

    /// Names without a certificate, or with one that is to be renewed.
    fn due(&mut self, acme: &Acme) -> Vec<String> {
        let mut due = acme.names.clone();
        due.retain(|name| self.due_in(acme, name).is_zero());
        due
    }

    fn until_due(&mut self, acme: &Acme) -> Duration {
        acme.names.iter().map(|name| self.due_in(acme, name)).min().unwrap_or(LOOK_EVERY)
    }

    /// A certificate's time is the calendar's; a pause is not lengthened when that is set.
    fn due_in(&mut self, acme: &Acme, name: &str) -> Duration {
        let left_alone = self.left_alone.get(&acme.directory).copied();
        let kept = self.listener.ordered(&Cache::of(acme).pair(name));
        let tries = self.tries_of(name);
        let renewal = kept.map_or(Duration::ZERO, |certificate| {
            let due = certificate.renewal_due(tries.spread);
            Duration::from_millis(due.0.saturating_sub(Clock::System.now().0))
        });
        let (now, next) = (clock::monotonic(), tries.next.max(tries.asked).max(left_alone));
        renewal.max(next.map_or(Duration::ZERO, |next| next.saturating_duration_since(now)))
    }

    fn tries_of(&mut self, name: &str) -> &mut Tries {
        self.tries.entry(name.to_owned()).or_insert_with(Tries::none)
    }

    /// What was tried elsewhere, or for names of before, says nothing of what these settings order.
    fn forget(&mut self, acme: &Acme) {
        let (same, now) = (self.directory == acme.directory, clock::monotonic());
        self.directory.clone_from(&acme.directory);
        self.tries.retain(|name, _| same && acme.names.contains(name));
        self.left_alone.retain(|_, until| *until > now);
    }

    /// Whoever has the configuration read again may have mended something. What the directory asked for stays.
    fn try_at_once(&mut self) {
        for tries in self.tries.values_mut() {
            tries.next = None;
        }
    }

    /// What it asked for before any name was ordered is about all of them.
    fn note(&mut self, acme: &Acme, put_off: &PutOff) {
        if let Some(pause) = put_off.take() {
            self.leave_alone(&acme.directory, pause);
        }
    }

    fn leave_alone(&mut self, directory: &str, pause: Duration) {
        self.left_alone.extend(from_now(pause).map(|until| (directory.to_owned(), until)));
    }

    fn all_failed(&mut self, acme: &Acme, names: &[String], failure: &Failure) {
        for name in names {
            self.failed(acme, name, failure);
        }
    }

    fn failed(&mut self, acme: &Acme, name: &str, failure: &Failure) {
        self.count(false);
        self.listener.order_ended(&Cache::of(acme).pair(name), false);
        let (first, most) = match failure.kind {
            Kind::Unreachable => UNREACHABLE_PAUSES,
            Kind::Refused | Kind::AccountUnknown | Kind::Cache => REFUSED_PAUSES,
        };
        let tries = self.tries_of(name);
        let pause = first.saturating_mul(1 << tries.failures.min(16)).min(most);
        tries.failures = tries.failures.saturating_add(1);
        // Up to a tenth later: nodes that failed together don't come back together.
        tries.next = from_now(pause + pause.mul_f64(0.1 * rand::random::<f64>()));
        tracing::error!(
            name,
            mend = failure.mend,
            next_try_in_seconds = self.due_in(acme, name).as_secs(),
            "no certificate was ordered, the one before stays in use if there is one: {}",
            failure.what
        );
    }

    fn count(&self, well: bool) {
        if well {
            self.metrics.succeeded();
        } else {
            self.metrics.failed();
        }
    }
}

fn from_now(pause: Duration) -> Option<Instant> {
    clock::monotonic().checked_add(pause)
}

async fn bounded<T>(work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    tokio::time::timeout(ORDER_MAX, work).await.unwrap_or_else(|_| {
        let what = format!("it was not done within {ORDER_MAX:?}");
        Err(Failure { kind: Kind::Refused, what, mend: "it is tried again" })
    })
}

fn nothing_kept(what: String) -> Failure {
    let mend = "let umavez's user write to [public_tls.acme] cache, and make room there";
    Failure { kind: Kind::Cache, what, mend }
}
