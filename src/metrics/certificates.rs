//! Handles for certificates and handshakes.

use std::path::{Path, PathBuf};
use std::time::Duration;

use metrics::{Counter, Gauge, counter, gauge};

use super::{ACME_ORDERS, CERTIFICATE_CURRENT, CERTIFICATE_NOT_AFTER, TLS_HANDSHAKES};

/// The certificates of one side: a listener's, or those shown to apps. Files are named by the configuration.
#[derive(Clone, Debug)]
pub struct Certificates {
    side: &'static str,
}

impl Certificates {
    pub fn new(side: &'static str) -> Self {
        Self { side }
    }

    /// This one is in use, and ends then: seconds since the epoch.
    pub fn certificate(&self, file: &Path, not_after: u64) {
        self.not_after(file, not_after);
        self.current(file, true);
    }

    pub fn not_after(&self, file: &Path, seconds: u64) {
        self.gauge(CERTIFICATE_NOT_AFTER, file).set(Duration::from_secs(seconds).as_secs_f64());
    }

    pub fn current(&self, file: &Path, current: bool) {
        self.gauge(CERTIFICATE_CURRENT, file).set(if current { 1.0 } else { 0.0 });
    }

    /// Other files are in use. No series can be taken back; one without a number compares with nothing.
    pub fn replaced(&self, before: &[PathBuf], after: &[PathBuf]) {
        for gone in before.iter().filter(|file| !after.contains(file)) {
            self.gauge(CERTIFICATE_NOT_AFTER, gone).set(f64::NAN);
            self.gauge(CERTIFICATE_CURRENT, gone).set(f64::NAN);
        }
        for file in after {
            self.current(file, true);
        }
    }

    fn gauge(&self, name: &'static str, file: &Path) -> Gauge {
        gauge!(name, "side" => self.side, "file" => file.display().to_string())
    }
}

/// How a handshake with a caller ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Handshake {
    Ok,
    /// The two did not agree, or the caller's certificate was refused.
    Failed,
    TooSlow,
    /// What came was no TLS.
    Plain,
    /// An authority looked at the proof of a name.
    Challenge,
}

impl Handshake {
    const ALL: [Self; 5] = [Self::Ok, Self::Failed, Self::TooSlow, Self::Plain, Self::Challenge];

    fn label(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Failed => "failed",
            Self::TooSlow => "too_slow",
            Self::Plain => "plain",
            Self::Challenge => "challenge",
        }
    }
}

/// One listener's handshakes.
#[derive(Clone, Debug)]
pub struct Handshakes([Counter; Handshake::ALL.len()]);

impl Handshakes {
    pub fn new(side: &'static str) -> Self {
        Self(Handshake::ALL.map(|how| counter!(TLS_HANDSHAKES, "side" => side, "result" => how.label())))
    }

    pub fn ended(&self, how: Handshake) {
        let index = Handshake::ALL.iter().position(|each| *each == how).expect("ALL lists every end");
        self.0[index].increment(1);
    }
}

/// Certificates ordered by ACME.
#[derive(Clone, Debug)]
pub struct Orders {
    ok: Counter,
    failed: Counter,
}

impl Orders {
    pub fn new() -> Self {
        let ended = |result: &'static str| counter!(ACME_ORDERS, "result" => result);
        Self { ok: ended("ok"), failed: ended("failed") }
    }

    pub fn succeeded(&self) {
        self.ok.increment(1);
    }

    pub fn failed(&self) {
        self.failed.increment(1);
    }
}

impl Default for Orders {
    fn default() -> Self {
        Self::new()
    }
}
