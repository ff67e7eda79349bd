//! All of the process's TLS in one hand, and the eye on its files: what changes on disk is put into use by itself.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use super::{AppFiles, Apps, Files, ListenerTls, Troubles, acme};

/// How often the files are looked at. A change is taken once two looks have seen the same: renewals write a chain and
/// its key one after the other.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// TLS of both listeners, towards apps, and towards the traces' collector. What reads files blocks on them, and is for
/// threads that serve nobody.
#[derive(Debug)]
pub struct Tls {
    pub public: Arc<ListenerTls>,
    pub admin: Arc<ListenerTls>,
    pub apps: Arc<Apps>,
    pub collector: Arc<Apps>,
    looks: Mutex<Looks>,
}

/// How files looked: when they were read, and at the last look.
#[derive(Debug, Default)]
struct Looks {
    read: Vec<Look>,
    last: Vec<Look>,
}

/// What tells a file's content from another without reading it. A new file under the old name has another number.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Look {
    file: PathBuf,
    is: Option<(SystemTime, u64, u64)>,
}

impl Tls {
    /// Reads every file.
    ///
    /// # Errors
    /// With every one that is of no use.
    pub fn open(files: &Files) -> Result<Arc<Self>, Troubles> {
        let tls = Self {
            public: Arc::new(ListenerTls::off("public")),
            admin: Arc::new(ListenerTls::off("admin")),
            apps: Arc::default(),
            collector: Arc::new(Apps::towards("collector")),
            looks: Mutex::default(),
        };
        tls.replace(files)?;
        Ok(Arc::new(tls))
    }

    /// Puts other files into use, for a new configuration.
    ///
    /// # Errors
    /// With every one that is of no use. What belongs to a listener (or the apps) changes as a whole or not at all.
    pub fn replace(&self, files: &Files) -> Result<(), Troubles> {
        self.note(files.paths());
        joined([
            self.public.replace(files.public.as_ref()),
            self.admin.replace(files.admin.as_ref()),
            self.apps.replace(&files.app, &files.own),
            self.collector.replace(&AppFiles::default(), files.collector.as_slice()),
        ])
    }

    /// Reads the same files again. What is of no use leaves what was before it in use, and shows in the metrics.
    ///
    /// # Errors
    /// With every file that could not be put into use.
    pub fn reload(&self) -> Result<(), Troubles> {
        self.note(self.paths());
        joined([self.public.reload(), self.admin.reload(), self.apps.reload(), self.collector.reload()])
    }

    /// Orders certificates and renews them, for ever. The listener has to be up: it proves the names.
    pub async fn order(self: Arc<Self>) {
        acme::keep(Arc::clone(&self.public)).await;
    }

    /// Puts changed files into use, for ever.
    pub async fn watch(self: Arc<Self>) {
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            let tls = Arc::clone(&self);
            // A file system that hangs must not hang who else runs here.
            let looked = tokio::task::spawn_blocking(move || tls.look()).await;
            if let Err(error) = looked {
                tracing::error!(%error, "the certificates' files could not be looked at");
            }
        }
    }

    fn look(&self) {
        let now = looks(self.paths());
        let due = {
            let mut looks = self.looks.lock().unwrap_or_else(PoisonError::into_inner);
            let due = now != looks.read && now == looks.last;
            looks.last = now;
            due
        };
        if due {
            match self.reload() {
                Ok(()) => tracing::info!("certificates were read again"),
                Err(troubles) => {
                    for trouble in troubles.0 {
                        tracing::error!(
                            file = %trouble.file.display(),
                            mend = trouble.mend,
                            "a certificate was not replaced, the one before stays in use: {}",
                            trouble.what
                        );
                    }
                }
            }
        }
    }

    /// Before reading: what changes meanwhile is seen at the next look.
    fn note(&self, paths: Vec<PathBuf>) {
        let now = looks(paths);
        let mut looks = self.looks.lock().unwrap_or_else(PoisonError::into_inner);
        looks.read.clone_from(&now);
        looks.last = now;
    }

    fn paths(&self) -> Vec<PathBuf> {
        let listeners = self.public.paths().into_iter().chain(self.admin.paths());
        listeners.chain(self.apps.paths()).chain(self.collector.paths()).collect()
    }
}

/// In the order of their names, whichever way they were listed.
fn looks(mut files: Vec<PathBuf>) -> Vec<Look> {
    files.sort_unstable();
    files.dedup();
    files.into_iter().map(Look::at).collect()
}

impl Look {
    fn at(file: PathBuf) -> Self {
        use std::os::unix::fs::MetadataExt as _;
        let metadata = std::fs::metadata(&file).ok();
        let is = metadata.and_then(|data| Some((data.modified().ok()?, data.len(), data.ino())));
        Self { file, is }
    }
}

fn joined(results: [Result<(), Troubles>; 4]) -> Result<(), Troubles> {
    Troubles::none_or(results.into_iter().filter_map(Result::err).flat_map(|troubles| troubles.0).collect())
}
