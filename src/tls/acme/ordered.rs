//! A name whose certificate is ordered, and the one that it has now, if any.

use std::sync::Arc;

use super::{Acme, Cache};
use crate::tls::certificate::Certificate;
use crate::tls::{Pair, Trouble};

#[derive(Debug)]
pub(crate) struct Ordered {
    pub(crate) name: String,
    pub(crate) pair: Pair,
    pub(crate) certificate: Option<Arc<Certificate>>,
    /// Whether what the cache holds is of no use; what was read before is in use.
    spoilt: bool,
    /// Whether the last order failed.
    pub(crate) failing: bool,
}

impl Ordered {
    /// Those of the settings, with what the cache holds of them. What is of no use there is ordered again.
    pub(crate) fn all(acme: &Acme) -> Result<Vec<Self>, Trouble> {
        let cache = Cache::of(acme);
        cache.prepare()?;
        let ordered = |name: &String| {
            let pair = cache.pair(name);
            let mut ordered =
                Self { name: name.clone(), pair, certificate: None, spoilt: false, failing: false };
            match ordered.load() {
                Ok(certificate) => ordered.certificate = certificate.map(Arc::new),
                Err(trouble) => tracing::warn!(
                    file = %trouble.file.display(),
                    "what the cache holds is of no use, and is ordered again: {}",
                    trouble.what
                ),
            }
            ordered
        };
        Ok(acme.names.iter().map(ordered).collect())
    }

    /// Takes what is on disk; a file that isn't there takes nothing away, and one that is of no use neither.
    pub(crate) fn read(&mut self) -> Result<(), Trouble> {
        let read = self.load();
        self.spoilt = read.is_err();
        let Some(fresh) = read? else { return Ok(()) };
        if !self.certificate.as_ref().is_some_and(|certificate| certificate.is_same(&fresh)) {
            fresh.tell_in_use();
            self.failing = false; // another process had more luck
        }
        self.certificate = Some(Arc::new(fresh));
        Ok(())
    }

    fn load(&self) -> Result<Option<Certificate>, Trouble> {
        if !self.pair.chain.exists() {
            return Ok(None);
        }
        let certificate = Certificate::load(&self.pair)?;
        certificate.is_for(&self.name)?;
        Ok(Some(certificate))
    }

    /// What was known of the name before its settings were read again.
    pub(crate) fn adopt(&mut self, before: &[Self]) {
        let same = |other: &&Self| other.name == self.name && other.pair == self.pair;
        if let Some(before) = before.iter().find(same) {
            self.failing = before.failing;
            if self.certificate.is_none() {
                self.certificate.clone_from(&before.certificate);
            }
        }
    }

    /// Whether what is shown is what should be.
    pub(crate) fn is_current(&self) -> bool {
        self.certificate.is_some() && !self.failing && !self.spoilt
    }
}
