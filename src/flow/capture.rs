//! Deliveries in files, for finding what names a provider's events: what is secret in them is hidden, the folder is
//! bounded, and none of it is on a request's way. A slow or full disk costs captures, never a request.
//!
//! Three files to a delivery, `NAME-TIME-RANDOM` and `.request` (method and URL), `.headers` (one `Name: value` a
//! line), `.body`: as `umavez keys` and `umavez keydiff` take them.

use std::collections::VecDeque;
use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use bytes::Bytes;
use http::header::{CONTENT_ENCODING, CONTENT_LENGTH};
use http::{HeaderMap, HeaderValue, Method};

use super::Arrived;
use crate::clock::{Clock, UnixMillis};
use crate::config;
use crate::metrics::Captures;
use crate::providers::Redactor;

/// Deliveries of one route that may wait for the disk, and the bytes of their bodies; more are dropped.
const WAITING_MAX: usize = 256;
const WAITING_BYTES_MAX: usize = 32 * 1024 * 1024;
/// The endings of a delivery's files. The last one is written last: who finds it finds all.
const ENDINGS: [&str; 3] = ["request", "body", "headers"];

/// One delivery as it came.
#[derive(Clone, Debug)]
pub struct Snapshot {
    pub at: UnixMillis,
    pub method: Method,
    /// The URL that the provider called.
    pub url: String,
    pub path_params: Vec<(String, String)>,
    pub headers: HeaderMap,
    /// The body as it came.
    pub raw: Bytes,
    /// The body less any `Content-Encoding`: what is written.
    pub decoded: Bytes,
}

/// A folder of deliveries and its bounds: past either, the oldest go. Files of others are left alone.
#[derive(Debug)]
pub struct Album {
    name: String,
    bounds: config::Capture,
    redactor: Redactor,
    /// What lies there, the oldest first; `None` until the folder was looked at.
    kept: Option<VecDeque<Kept>>,
}

#[derive(Debug)]
struct Kept {
    stem: String,
    bytes: usize,
}

impl Album {
    pub fn new(name: &str, bounds: config::Capture, redactor: Redactor) -> Self {
        Self { name: name.to_owned(), bounds, redactor, kept: None }
    }

    /// Writes one delivery; gives its files' path without their endings.
    ///
    /// # Errors
    /// When the folder can't be made, read or written, or the delivery is longer than all of it may be.
    pub fn keep(&mut self, snapshot: &Snapshot) -> io::Result<PathBuf> {
        let contents = self.contents(snapshot);
        let bytes = contents.iter().map(Vec::len).sum();
        if bytes > self.bounds.bytes_max {
            return Err(io::Error::other("the delivery is longer than the captures may be together"));
        }
        if self.kept.is_none() {
            self.kept = Some(self.open()?);
        }
        self.make_room(bytes)?;
        let stem = format!("{}-{}-{:08x}", self.name, compact(snapshot.at), rand::random::<u32>());
        for (ending, content) in ENDINGS.iter().zip(&contents) {
            if let Err(error) = self.write(&stem, ending, content) {
                self.remove(&stem).ok();
                return Err(error);
            }
        }
        let path = self.bounds.folder.join(&stem);
        self.kept.get_or_insert_default().push_back(Kept { stem, bytes });
        Ok(path)
    }

    /// In the order of [`ENDINGS`].
    fn contents(&self, snapshot: &Snapshot) -> [Vec<u8>; 3] {
        let body = match self.redactor.body(&snapshot.headers, &snapshot.decoded) {
            Ok(body) => body.into_owned(),
            Err(withheld) => format!("{withheld}\n").into_bytes(),
        };
        let mut headers = self.redactor.headers(&snapshot.headers);
        // The headers tell of the body beside them.
        if body != *snapshot.raw {
            headers.remove(CONTENT_ENCODING);
            if headers.contains_key(CONTENT_LENGTH) {
                headers.insert(CONTENT_LENGTH, HeaderValue::from(body.len()));
            }
        }
        let mut lines = Vec::new();
        for (name, value) in &headers {
            for piece in [name.as_str().as_bytes(), b": ", value.as_bytes(), b"\n"] {
                lines.extend_from_slice(piece);
            }
        }
        let url = self.redactor.url(&snapshot.url, &snapshot.path_params);
        [format!("{} {url}\n", snapshot.method).into_bytes(), body, lines]
    }

    /// Makes the folder where there is none, and looks what an earlier run left there.
    fn open(&self) -> io::Result<VecDeque<Kept>> {
        DirBuilder::new().recursive(true).mode(0o700).create(&self.bounds.folder)?;
        let mut found: Vec<Kept> = Vec::new();
        for entry in fs::read_dir(&self.bounds.folder)? {
            let entry = entry?;
            let name = entry.file_name();
            let Some(name) = name.to_str() else { continue };
            let half_written = name.strip_prefix('.').and_then(|name| self.stem_of(name));
            if half_written.is_some() {
                fs::remove_file(entry.path())?;
                continue;
            }
            let Some(stem) = self.stem_of(name) else { continue };
            let bytes = usize::try_from(entry.metadata()?.len()).unwrap_or(usize::MAX);
            match found.iter_mut().find(|kept| kept.stem == stem) {
                Some(kept) => kept.bytes = kept.bytes.saturating_add(bytes),
                None => found.push(Kept { stem: stem.to_owned(), bytes }),
            }
        }
        found.sort_by(|a, b| a.stem.cmp(&b.stem));
        Ok(found.into())
    }

    /// The stem of a file that this album wrote: another's name may begin with this one's.
    fn stem_of<'a>(&self, file: &'a str) -> Option<&'a str> {
        let (stem, ending) = file.rsplit_once('.')?;
        let rest = stem.strip_prefix(self.name.as_str())?.strip_prefix('-')?;
        let (time, random) = rest.split_once('-')?;
        let ours = ENDINGS.contains(&ending)
            && time.len() == COMPACT_LENGTH
            && time.bytes().all(|byte| byte.is_ascii_digit() || matches!(byte, b'T' | b'Z'))
            && random.len() == 8
            && random.bytes().all(|byte| byte.is_ascii_hexdigit());
        ours.then_some(stem)
    }

    /// Removes the oldest until one more delivery of so many bytes fits.
    fn make_room(&mut self, bytes: usize) -> io::Result<()> {
        loop {
            let kept = self.kept.get_or_insert_default();
            let total = kept.iter().fold(bytes, |total, kept| total.saturating_add(kept.bytes));
            if kept.len() < self.bounds.deliveries_max && total <= self.bounds.bytes_max {
                return Ok(());
            }
            let Some(oldest) = kept.front().map(|kept| kept.stem.clone()) else { return Ok(()) };
            self.remove(&oldest)?;
            self.kept.get_or_insert_default().pop_front();
        }
    }

    fn remove(&self, stem: &str) -> io::Result<()> {
        for ending in ENDINGS.iter().rev() {
            match fs::remove_file(self.bounds.folder.join(format!("{stem}.{ending}"))) {
                Ok(()) => {}
                // Who looks at the captures may have taken it away.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Whole or not at all, and for this user alone.
    fn write(&self, stem: &str, ending: &str, content: &[u8]) -> io::Result<()> {
        let begun = self.bounds.folder.join(format!(".{stem}.{ending}"));
        let written = write_new(&begun, content)
            .and_then(|()| fs::rename(&begun, self.bounds.folder.join(format!("{stem}.{ending}"))));
        if written.is_err() {
            fs::remove_file(&begun).ok();
        }
        written
    }
}

fn write_new(path: &Path, content: &[u8]) -> io::Result<()> {
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?.write_all(content)
}

/// Letters of [`compact`].
const COMPACT_LENGTH: usize = 19;

/// `20260810T120000000Z`: sorts as time goes, and every file system takes it.
fn compact(at: UnixMillis) -> String {
    at.rfc3339().chars().filter(char::is_ascii_alphanumeric).collect()
}

/// Hands a route's deliveries to a thread of their own.
#[derive(Debug)]
pub(super) struct Recorder {
    queue: SyncSender<Snapshot>,
    waiting_bytes: Arc<AtomicUsize>,
    metrics: Captures,
}

impl Recorder {
    /// The thread ends when the recorder is dropped and what waits is written.
    ///
    /// # Errors
    /// When no thread can be had.
    pub(super) fn start(album: Album, metrics: Captures) -> io::Result<Self> {
        let (queue, waiting) = sync_channel(WAITING_MAX);
        let waiting_bytes = Arc::new(AtomicUsize::new(0));
        let (counted, bytes) = (metrics.clone(), Arc::clone(&waiting_bytes));
        std::thread::Builder::new()
            .name("capture".to_owned())
            .spawn(move || write_all(album, &waiting, &bytes, &counted))?;
        Ok(Self { queue, waiting_bytes, metrics })
    }

    /// Never waits: where too much waits already, the delivery is not captured.
    pub(super) fn offer(&self, arrived: &Arrived) {
        let length = arrived.request.body().len().saturating_add(arrived.decoded.len());
        let fits = |waiting: usize| waiting.checked_add(length).filter(|sum| *sum <= WAITING_BYTES_MAX);
        if self.waiting_bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).is_err() {
            return self.metrics.dropped.increment(1);
        }
        let snapshot = Snapshot {
            at: Clock::System.now(),
            method: arrived.request.method().clone(),
            url: arrived.url.clone(),
            path_params: arrived.path_params.clone(),
            headers: arrived.request.headers().clone(),
            raw: arrived.request.body().clone(),
            decoded: arrived.decoded.clone(),
        };
        if self.queue.try_send(snapshot).is_err() {
            self.waiting_bytes.fetch_sub(length, Ordering::Relaxed);
            self.metrics.dropped.increment(1);
        }
    }
}

fn write_all(mut album: Album, waiting: &Receiver<Snapshot>, bytes: &AtomicUsize, metrics: &Captures) {
    let mut failing = false;
    while let Ok(snapshot) = waiting.recv() {
        match album.keep(&snapshot) {
            Ok(_path) => {
                metrics.written.increment(1);
                failing = false;
            }
            Err(error) => {
                metrics.failed.increment(1);
                // A full disk fails every delivery: it is told once.
                if !failing {
                    tracing::warn!(route = album.name, folder = %album.bounds.folder.display(), %error, "a delivery was not captured");
                }
                failing = true;
            }
        }
        bytes.fetch_sub(snapshot.raw.len().saturating_add(snapshot.decoded.len()), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use http::Request;

    use super::*;
    use crate::upstream::headers::Caller;

    /// A recorder whose disk never answers.
    fn stuck() -> (Recorder, Receiver<Snapshot>) {
        let (queue, waiting) = sync_channel(WAITING_MAX);
        let metrics = crate::metrics::Route::new(&"stuck".into(), "none", "inline").captures;
        (Recorder { queue, waiting_bytes: Arc::default(), metrics }, waiting)
    }

    fn arrived(bytes: usize) -> Arrived {
        let body = Bytes::from(vec![b'x'; bytes]);
        let caller = Caller { address: IpAddr::from([127, 0, 0, 1]), secure: false, trusted: false };
        let request = Request::new(body.clone());
        Arrived { request, decoded: body, url: "/".to_owned(), path_params: Vec::new(), caller, _room: None }
    }

    #[test]
    fn no_request_waits_for_a_disk_that_hangs() {
        let (recorder, waiting) = stuck();
        let small = arrived(10);
        for _ in 0..WAITING_MAX * 2 {
            recorder.offer(&small);
        }
        assert_eq!(waiting.try_iter().count(), WAITING_MAX);
        assert_eq!(recorder.waiting_bytes.load(Ordering::Relaxed), WAITING_MAX * 20);

        let (recorder, waiting) = stuck();
        let large = arrived(WAITING_BYTES_MAX / 5);
        for _ in 0..10 {
            recorder.offer(&large);
        }
        assert_eq!(waiting.try_iter().count(), 2, "each counts with its decoded body");
    }
}
