//! TLS towards all apps: what they share, and what single ones have of their own.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

use super::{AppFiles, AppTls, Refused, Trouble, Troubles};

/// Whom we trust and what we show, app by app.
#[derive(Debug, Default)]
pub struct Apps {
    pub shared: AppTls,
    own: RwLock<HashMap<AppFiles, Arc<AppTls>>>,
}

impl Apps {
    /// The same for every app.
    pub fn sharing(shared: AppTls) -> Self {
        Self { shared, own: RwLock::default() }
    }

    /// Puts these files into use in place of what was.
    ///
    /// # Errors
    /// When one of them is of no use: then nothing changes.
    pub fn replace(&self, shared: &AppFiles, own: &[AppFiles]) -> Result<(), Troubles> {
        let mut fresh = HashMap::new();
        let mut troubles = Vec::new();
        for files in own {
            match opened(files) {
                Ok(tls) => drop(fresh.insert(files.clone(), Arc::new(tls))),
                Err(found) => troubles.extend(found.0),
            }
        }
        Troubles::none_or(troubles)?;
        self.shared.replace(shared)?;
        // A file that was everybody's till now and is one app's own from now on is in use all the same.
        fresh.values().for_each(|tls: &Arc<AppTls>| tls.tell_again());
        let mut kept = self.shared.shown();
        kept.extend(fresh.values().flat_map(|tls| tls.shown()));
        let before = std::mem::replace(&mut *self.own.write().unwrap_or_else(PoisonError::into_inner), fresh);
        for gone in before.values() {
            gone.gone(&kept);
        }
        Ok(())
    }

    /// Reads the files again. What is of no use leaves what was before it in use.
    ///
    /// # Errors
    /// With what could not be put into use.
    pub fn reload(&self) -> Result<(), Troubles> {
        let own: Vec<Arc<AppTls>> = self.own().values().cloned().collect();
        let all = std::iter::once(self.shared.reload()).chain(own.iter().map(|tls| tls.reload()));
        Troubles::none_or(all.filter_map(Result::err).flat_map(|troubles| troubles.0).collect())
    }

    /// What an app with these files of its own is reached with.
    ///
    /// # Errors
    /// When they are not in use any more, and can't be read again for a request that began when they were.
    pub fn own_of(&self, files: &AppFiles) -> Result<Arc<AppTls>, Refused> {
        let known = self.own().get(files).map(Arc::clone);
        known.map_or_else(|| Ok(Arc::new(opened(files)?)), Ok)
    }

    pub(super) fn paths(&self) -> Vec<PathBuf> {
        let own = self.own();
        self.shared.paths().into_iter().chain(own.values().flat_map(|tls| tls.paths())).collect()
    }

    fn own(&self) -> RwLockReadGuard<'_, HashMap<AppFiles, Arc<AppTls>>> {
        self.own.read().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Read, and found to be something to trust by.
fn opened(files: &AppFiles) -> Result<AppTls, Troubles> {
    let tls = AppTls::new();
    tls.replace(files)?;
    tls.prepare().map_err(|error| {
        Troubles(vec![Trouble::new(
            "the system's trusted certificates",
            error.to_string(),
            "set the app's ca",
        )])
    })?;
    Ok(tls)
}
