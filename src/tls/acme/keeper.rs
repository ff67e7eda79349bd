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
    /// How much earlier than it has to a renewal begins, in thousandths of a thirtieth of the certificate's life: not
    /// every name, and not every node, at once.
    spread: u64,
}

impl Tries {
    fn none() -> Self {
        Self { failures: 0, next: None, spread: rand::random_range(0..1000) }
    }
}

struct Keeper {
    listener: Arc<ListenerTls>,
    tries: HashMap<String, Tries>,
    /// The directory asked to be left alone until then.
    put_off: Option<Instant>,
    metrics: metrics::Orders,
}

/// Keeps a listener's ordered certificates fresh, for ever. Dropped, it leaves off; what was under way is ordered anew.
pub(crate) async fn keep(listener: Arc<ListenerTls>) {
    let (metrics, mut read) = (metrics::Orders::new(), listener.acme_read());
    let mut keeper = Keeper { listener, tries: HashMap::new(), put_off: None, metrics };
    loop {
        let pause = match keeper.listener.acme() {
            Some(acme) => keeper.round(&acme).await,
            None => LOOK_EVERY,
        };
        tokio::select! {
            Ok(()) = read.changed() => keeper.try_at_once(),
            () = tokio::time::sleep(pause.clamp(LEAST_PAUSE, LOOK_EVERY)) => {}
        }
    }
}

impl Keeper {
    /// Orders what is due; how long nothing is.
    async fn round(&mut self, acme: &Acme) -> Duration {
        self.tries.retain(|name, _| acme.names.contains(name));
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
                self.all_failed(&due, &failure);
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
            Err(failure) => return self.all_failed(&due, &failure),
        };
        for (index, name) in due.iter().enumerate() {
            tracing::info!(name, directory = acme.directory, "ordering a certificate");
            let mut ended = bounded(session.order(name)).await;
            if ended.as_ref().is_err_and(|failure| failure.kind == Kind::AccountUnknown) {
                session = match self.new_session(acme, cache, &put_off).await {
                    Ok(session) => session,
                    Err(failure) => return self.all_failed(due.get(index..).unwrap_or_default(), &failure),
                };
                ended = bounded(session.order(name)).await;
            }
            match ended {
                Ok(()) => self.ordered(name).await,
                Err(failure) => {
                    self.note_put_off(&put_off);
                    if self.is_put_off() || failure.kind == Kind::Unreachable {
                        // The others would fare no better.
                        return self.all_failed(due.get(index..).unwrap_or_default(), &failure);
                    }
                    self.failed(name, &failure);
                }
            }
            if self.listener.acme().as_ref() != Some(acme) {
                return; // there are other settings
            }
        }
    }

    /// One that is due again at once is not ordered for ever: something is wrong with it, or with the clock.
    async fn ordered(&mut self, name: &str) {
        self.take_what_is_kept().await;
        if self.due_in(name).is_zero() {
            let what = "the certificate that was signed is due for renewal already".to_owned();
            let mend =
                "see that this machine's clock is right, and how long the authority's certificates are valid";
            return self.failed(name, &Failure { kind: Kind::Refused, what, mend });
        }
        self.metrics.succeeded();
        self.tries.remove(name);
        self.listener.order_ended(name, true);
    }

    async fn session(&mut self, acme: &Acme, cache: &Cache, put_off: &PutOff) -> Result<Session, Failure> {
        let opened = bounded(Session::open(acme, cache, put_off)).await;
        match opened {
            Err(failure) if failure.kind == Kind::AccountUnknown => {
                self.new_session(acme, cache, put_off).await
            }
            Err(failure) => {
                self.note_put_off(put_off);
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
            self.note_put_off(put_off);
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
        due.retain(|name| self.due_in(name).is_zero());
        due
    }

    fn until_due(&mut self, acme: &Acme) -> Duration {
        acme.names.iter().map(|name| self.due_in(name)).min().unwrap_or(LOOK_EVERY)
    }

    /// A certificate's time is the calendar's; a pause is not lengthened when that is set.
    fn due_in(&mut self, name: &str) -> Duration {
        let tries = self.tries.entry(name.to_owned()).or_insert_with(Tries::none);
        let renewal = self.listener.ordered(name).map_or(Duration::ZERO, |certificate| {
            let due = certificate.renewal_due(tries.spread);
            Duration::from_millis(due.0.saturating_sub(Clock::System.now().0))
        });
        let now = clock::monotonic();
        let pause =
            tries.next.max(self.put_off).map_or(Duration::ZERO, |next| next.saturating_duration_since(now));
        renewal.max(pause)
    }

    /// Whoever has the configuration read again may have mended something. What the directory asked for stays.
    fn try_at_once(&mut self) {
        for tries in self.tries.values_mut() {
            tries.next = None;
        }
    }

    fn note_put_off(&mut self, put_off: &PutOff) {
        if let Some(pause) = put_off.take() {
            self.put_off = clock::monotonic().checked_add(pause);
        }
    }

    fn is_put_off(&self) -> bool {
        self.put_off > Some(clock::monotonic())
    }

    fn all_failed(&mut self, names: &[String], failure: &Failure) {
        for name in names {
            self.failed(name, failure);
        }
    }

    fn failed(&mut self, name: &str, failure: &Failure) {
        self.metrics.failed();
        self.listener.order_ended(name, false);
        let (first, most) = match failure.kind {
            Kind::Unreachable => UNREACHABLE_PAUSES,
            Kind::Refused | Kind::AccountUnknown | Kind::Cache => REFUSED_PAUSES,
        };
        let tries = self.tries.entry(name.to_owned()).or_insert_with(Tries::none);
        let pause = first.saturating_mul(1 << tries.failures.min(16)).min(most);
        tries.failures = tries.failures.saturating_add(1);
        // Up to a tenth later: nodes that failed together don't come back together.
        tries.next = clock::monotonic().checked_add(pause + pause.mul_f64(0.1 * rand::random::<f64>()));
        tracing::error!(
            name,
            mend = failure.mend,
            next_try_in_seconds = self.due_in(name).as_secs(),
            "no certificate was ordered, the one before stays in use if there is one: {}",
            failure.what
        );
    }
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
