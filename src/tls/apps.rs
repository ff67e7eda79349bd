//! TLS towards all apps: what they share, and what single ones have of their own.

use std::collections::{HashMap, VecDeque};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard};

use super::{AppFiles, AppTls, Refused, Troubles};

/// Sets of files that are kept after a configuration has let them go, for requests that began before: the latest.
const FORMER_MAX: usize = 64;

/// Whom we trust and what we show, app by app.
#[derive(Debug)]
pub struct Apps {
    pub shared: AppTls,
    own: RwLock<Own>,
    /// Held while files are read: what was read later is never replaced by what was read before.
    reading: Mutex<()>,
    side: &'static str,
}

#[derive(Debug, Default)]
struct Own {
    current: HashMap<AppFiles, Arc<AppTls>>,
    /// Not in use any more, as they were when they were let go; the oldest first.
    former: VecDeque<(AppFiles, Arc<AppTls>)>,
}

impl Apps {
    /// None yet; metrics tell of their files under the name of this side.
    pub fn towards(side: &'static str) -> Self {
        Self { shared: AppTls::towards(side), own: RwLock::default(), reading: Mutex::default(), side }
    }

    /// Puts these files into use in place of what was.
    ///
    /// # Errors
    /// When one of them is of no use: then nothing changes.
    pub fn replace(&self, shared: &AppFiles, own: &[AppFiles]) -> Result<(), Troubles> {
        let _reading = self.reading.lock().unwrap_or_else(PoisonError::into_inner);
        let mut fresh = HashMap::new();
        let mut troubles = Vec::new();
        for files in own {
            match AppTls::opened(self.side, files) {
                Ok(tls) => drop(fresh.insert(files.clone(), Arc::new(tls))),
                Err(found) => troubles.extend(found.0),
            }
        }
        Troubles::none_or(troubles)?;
        self.shared.replace(shared)?;
        // A file that was everybody's till now and is one app's own from now on is in use all the same.
        fresh.values().for_each(|tls: &Arc<AppTls>| tls.tell());
        let mut kept = self.shared.shown();
        kept.extend(fresh.values().flat_map(|tls| tls.shown()));
        let mut own = self.own.write().unwrap_or_else(PoisonError::into_inner);
        let before = std::mem::replace(&mut own.current, fresh);
        for (files, tls) in before {
            tls.gone(&kept);
            own.let_go(files, tls);
        }
        Ok(())
    }

    /// Reads the files again. What is of no use leaves what was before it in use.
    ///
    /// # Errors
    /// With what could not be put into use.
    pub fn reload(&self) -> Result<(), Troubles> {
        let _reading = self.reading.lock().unwrap_or_else(PoisonError::into_inner);
        let own: Vec<Arc<AppTls>> = self.own().current.values().cloned().collect();
        let all = std::iter::once(self.shared.reload()).chain(own.iter().map(|tls| tls.reload()));
        Troubles::none_or(all.filter_map(Result::err).flat_map(|troubles| troubles.0).collect())
    }

    /// What an app with these files of its own is reached with. Nothing is read: a request that began when they were in
    /// use gets them as they were.
    ///
    /// # Errors
    /// When they were let go so long ago that they are not kept any more.
    pub fn own_of(&self, files: &AppFiles) -> Result<Arc<AppTls>, Refused> {
        let own = self.own();
        let former = || own.former.iter().find(|(former, _)| former == files).map(|(_, tls)| tls);
        let known = own.current.get(files).or_else(former);
        known
            .map(Arc::clone)
            .ok_or_else(|| "the app's certificates were taken out of the configuration".into())
    }

    pub(super) fn paths(&self) -> Vec<PathBuf> {
        let own = self.own();
        self.shared.paths().into_iter().chain(own.current.values().flat_map(|tls| tls.paths())).collect()
    }

    fn own(&self) -> RwLockReadGuard<'_, Own> {
        self.own.read().unwrap_or_else(PoisonError::into_inner)
    }
}

/// None yet, towards apps.
impl Default for Apps {
    fn default() -> Self {
        Self::towards("upstream")
    }
}

impl Own {
    fn let_go(&mut self, files: AppFiles, tls: Arc<AppTls>) {
        self.former.retain(|(former, _)| *former != files && !self.current.contains_key(former));
        if !self.current.contains_key(&files) {
            self.former.push_back((files, tls));
        }
        if self.former.len() > FORMER_MAX {
            self.former.pop_front();
        }
    }
}
