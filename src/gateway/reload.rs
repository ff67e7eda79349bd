//! Reads the configuration again, on SIGHUP or when the admin listener is asked to, and swaps in one step what can
//! change while a gateway runs. A file with a problem changes nothing.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use tokio::signal::unix::Signal;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::admin::{Reload, Reloaded, Token};
use crate::clock::Clock;
use crate::config::{Config, ConfigErrors, ConfigFile, Fault, Place, Problem, Warning};
use crate::flow::{Live, Route, Routes, Shared};
use crate::metrics::Reloads;
use crate::tls::{Files, Tls};
use crate::trace::{self, Exporter};

/// How long reading may take; then the next wish has its turn. A thread that hangs in a read is left to it: what it may
/// read yet is not used.
const READ_MAX: Duration = Duration::from_secs(10);

/// What a reload works on.
pub(super) struct Reloader {
    /// Without one there is nothing to read again.
    pub(super) file: Option<ConfigFile>,
    pub(super) running: Config,
    pub(super) live: Live,
    pub(super) token: Token,
    pub(super) metrics: Reloads,
    pub(super) tls: Arc<Tls>,
    pub(super) tracker: TaskTracker,
    pub(super) stop: CancellationToken,
}

impl Reloader {
    /// Answers every wish until `stop`; one at a time, so that what is in effect is what was read last.
    pub(super) async fn run(mut self, mut hangup: Option<Signal>, mut wishes: mpsc::Receiver<Reload>) {
        loop {
            let wish = tokio::select! {
                () = self.stop.cancelled() => return,
                Some(()) = next(&mut hangup) => None,
                Some(wish) = wishes.recv() => Some(wish),
            };
            let by = wish.as_ref().map_or("SIGHUP", |wish| &wish.by);
            // A file system that hangs holds up no stop.
            let stop = self.stop.clone();
            let Some(reloaded) = stop.run_until_cancelled(self.reload(by)).await else { return };
            if let Some(wish) = wish {
                // Whoever asked may be gone; what was done is done.
                wish.answer.send(reloaded).ok();
            }
        }
    }

    async fn reload(&mut self, by: &str) -> Reloaded {
        let Some(file) = self.file.clone() else {
            tracing::warn!(by, "nothing to reload: the gateway was started without a file");
            return Reloaded::NoFile;
        };
        let (tls, before) = (Arc::clone(&self.tls), self.running.tls.clone());
        // Files are read and keys prepared beside this runtime, which writes for the durable store.
        let serves = !self.running.routes.is_empty();
        let given_up = CancellationToken::new();
        let (late, _given_up_at_the_end) = (given_up.clone(), given_up.drop_guard());
        let read = tokio::task::spawn_blocking(move || read(&file, &tls, &before, serves, &late));
        let read = match tokio::time::timeout(READ_MAX, read).await {
            Ok(read) => read.unwrap_or_else(|error| Err(whole(&format!("reading it failed: {error}")))),
            Err(_elapsed) => {
                Err(whole(&format!("reading it, or a file that it names, took longer than {READ_MAX:?}")))
            }
        };
        match read {
            Ok(next) => self.swap(by, next),
            Err(errors) => {
                self.metrics.failed();
                for problem in &errors.0 {
                    tracing::error!(
                        by, place = %problem.place, field = problem.field, mend = problem.fault.mend,
                        "not reloaded: {}", problem.fault.what
                    );
                }
                Reloaded::Refused(errors)
            }
        }
    }

    fn swap(&mut self, by: &str, next: Next) -> Reloaded {
        let Next { config, shared, exporter, warnings } = next;
        let changes = self.running.adopt(config);
        self.live.swap(shared);
        // The one before ends by itself: when the last request that it traces has ended, and its spans are sent.
        spawn(exporter, &self.tracker, &self.stop);
        self.token.swap(self.running.listen.admin_token.clone());
        self.metrics.succeeded(Duration::from_millis(Clock::System.now().0));
        for warning in &warnings {
            tracing::warn!(place = %warning.place, field = warning.field, "{}", warning.text);
        }
        for setting in &changes.need_restart {
            tracing::warn!(setting, "left as it was: this setting needs a restart");
        }
        tracing::info!(
            by,
            added = changes.added.join(", "),
            removed = changes.removed.join(", "),
            changed = changes.changed.join(", "),
            settings = changes.settings.join(", "),
            "reloaded"
        );
        Reloaded::Done { changes, warnings }
    }
}

/// Everything that a swap needs, ready: from here on nothing can fail.
struct Next {
    config: Config,
    shared: Shared,
    exporter: Option<Exporter>,
    warnings: Vec<Warning>,
}

/// Certificates are in use as soon as they are read: last, when nothing else can fail.
fn read(
    file: &ConfigFile,
    tls: &Tls,
    before: &Files,
    serves: bool,
    given_up: &CancellationToken,
) -> Result<Next, ConfigErrors> {
    let (config, warnings) = file.load()?;
    if serves && config.routes.is_empty() {
        // An empty file is a valid one, and what a write that was cut short leaves.
        return Err(whole("it has no [[route]] any more; start anew to serve without any"));
    }
    let (shared, exporter) = shared(&config, tls).map_err(|error| whole(&format!("{error:#}")))?;
    if given_up.is_cancelled() {
        return Err(whole("it was read too late"));
    }
    if let Err(error) = certificates(&config, tls) {
        // Those that were in use are read again; each that is of no use any more stays as it was.
        drop(tls.replace(before));
        return Err(whole(&format!("{error:#}")));
    }
    Ok(Next { config, shared, exporter, warnings })
}

fn certificates(config: &Config, tls: &Tls) -> anyhow::Result<()> {
    tls.replace(&config.tls)?;
    prepare(config, tls)
}

/// Reads the system's roots, where they are what is trusted.
pub(super) fn prepare(config: &Config, tls: &Tls) -> anyhow::Result<()> {
    if config.has_encrypted_apps() {
        tls.apps.shared.prepare().map_err(anyhow::Error::from_boxed).context("TLS to the app")?;
    }
    if config.has_encrypted_collector() {
        tls.collector.shared.prepare().map_err(anyhow::Error::from_boxed).context("TLS to the collector")?;
    }
    Ok(())
}

/// A problem of the file as a whole.
fn whole(what: &str) -> ConfigErrors {
    let place = Place { file: "the configuration".to_owned(), at: None };
    let fault =
        Fault { what: what.to_owned(), mend: "the gateway runs on as it was".to_owned(), absent: false };
    ConfigErrors(vec![Problem { place, field: String::new(), fault }])
}

/// What requests look at, from a configuration; and what sends their spans away, where there are any.
pub(super) fn shared(config: &Config, tls: &Tls) -> anyhow::Result<(Shared, Option<Exporter>)> {
    let routes: Result<_, _> = config.routes.iter().map(|route| Route::new(Arc::clone(route))).collect();
    let (tracer, exporter) = trace::open(config.traces.as_ref(), &config.limits, &tls.collector).unzip();
    let shared = Shared {
        routes: Routes::new(routes?).context("the routes")?,
        default: config.upstream.clone().map(Arc::new),
        trusted_proxies: config.listen.trusted_proxies.clone(),
        tracer,
    };
    Ok((shared, exporter))
}

pub(super) fn spawn(exporter: Option<Exporter>, tracker: &TaskTracker, stop: &CancellationToken) {
    if let Some(exporter) = exporter {
        tracker.spawn(exporter.run(stop.clone()));
    }
}

async fn next(signal: &mut Option<Signal>) -> Option<()> {
    match signal {
        Some(signal) => signal.recv().await,
        None => std::future::pending().await,
    }
}
