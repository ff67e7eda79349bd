//! A name whose certificate is ordered, and the one that it has now, if any.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::{Acme, Cache};
use crate::tls::certificate::Certificate;
use crate::tls::{Pair, Trouble};

#[derive(Clone, Debug)]
pub(crate) struct Ordered {
    pub(crate) name: String,
    pub(crate) pair: Pair,
    pub(crate) certificate: Option<Arc<Certificate>>,
    /// Whether what the cache holds is of no use; what was read before is in use.
    spoilt: bool,
    /// Whether the last order failed. What is being read and what is in use share it: orders end at any time.
    failing: Arc<AtomicBool>,
}

impl Ordered {
    /// Those of the settings, with what the cache holds of them. What is of no use there is ordered again.
    pub(crate) fn all(acme: &Acme) -> Result<Vec<Self>, Trouble> {
        let cache = Cache::of(acme);
        cache.prepare()?;
        let ordered = |name: &String| {
            let (pair, failing) = (cache.pair(name), Arc::default());
            let mut ordered = Self { name: name.clone(), pair, certificate: None, spoilt: false, failing };
            match ordered.load() {
                Ok(certificate) => ordered.certificate = certificate.map(Arc::new),
                Err(trouble) => {
                    ordered.spoilt = true;
                    tracing::warn!(
                        file = %trouble.file.display(),
                        "what the cache holds is of no use, and is ordered again unless it was read before: {}",
                        trouble.what
                    );
                }
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
        if !self.holds(&fresh) {
            fresh.tell_in_use();
            self.ended(true); // another process had more luck
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
        let Some(before) = before.iter().find(same) else { return };
        self.failing = Arc::clone(&before.failing);
        match &self.certificate {
            None => self.certificate.clone_from(&before.certificate),
            Some(fresh) if before.holds(fresh) => {}
            Some(_) => self.ended(true), // another process had more luck
        }
    }

    fn holds(&self, fresh: &Certificate) -> bool {
        self.certificate.as_ref().is_some_and(|certificate| certificate.is_same(fresh))
    }

    /// Whether what is shown is what should be.
    pub(crate) fn is_current(&self) -> bool {
        self.certificate.is_some() && !self.spoilt && !self.failing.load(Ordering::Relaxed)
    }

    pub(crate) fn ended(&self, well: bool) {
        self.failing.store(!well, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(folder: &tempfile::TempDir) -> Acme {
        Acme {
            names: vec!["a.example".to_owned()],
            contacts: Vec::new(),
            directory: "https://directory.example".to_owned(),
            directory_ca: None,
            external_account: None,
            cache: folder.path().to_owned(),
        }
    }

    fn put(acme: &Acme) {
        let made = rcgen::generate_simple_self_signed(acme.names.clone()).unwrap();
        let file = Cache::of(acme).pair("a.example").chain;
        std::fs::write(file, made.cert.pem() + &made.signing_key.serialize_pem()).unwrap();
    }

    /// A reload that came before the look at a certificate which another process had ordered kept the failure of our
    /// own order: that it was not current was told until the next renewal.
    #[test]
    fn a_reload_takes_what_another_process_ordered_for_the_end_of_a_failure() {
        let folder = tempfile::tempdir().unwrap();
        let acme = settings(&folder);
        Cache::of(&acme).prepare().unwrap();
        put(&acme);
        let before = Ordered::all(&acme).unwrap();
        before[0].ended(false);
        for (renewed, current) in [(false, false), (true, true)] {
            if renewed {
                put(&acme);
            }
            let mut after = Ordered::all(&acme).unwrap();
            after[0].adopt(&before);
            assert_eq!(after[0].is_current(), current);
        }
    }

    /// After a reload a certificate counted as current whose file had become of no use.
    #[test]
    fn a_reload_does_not_make_a_spoilt_file_current() {
        let folder = tempfile::tempdir().unwrap();
        let acme = settings(&folder);
        Cache::of(&acme).prepare().unwrap();
        put(&acme);
        let before = Ordered::all(&acme).unwrap();
        assert!(before[0].is_current());
        std::fs::write(&before[0].pair.chain, "rubbish").unwrap();
        let mut after = Ordered::all(&acme).unwrap();
        after[0].adopt(&before);
        assert!(after[0].certificate.is_some(), "it is in use");
        assert!(!after[0].is_current());
    }
}
