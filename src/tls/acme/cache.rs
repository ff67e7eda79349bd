//! The folder that outlives the process: the account, what was ordered, and what is being proved. Each directory has a
//! part of its own, so that a certificate for trying out never serves in a real one's place.
//!
//! `CACHE/HOST-DIGEST/account.json`, `…/certificates/NAME.pem` (chain and key in one file, so that they change at once),
//! `…/challenges/NAME.pem`, `…/lock`.

use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use super::Acme;
use crate::tls::certificate::Certificate;
use crate::tls::{Pair, Trouble};

/// Longest account file that is read, bytes.
const ACCOUNT_BYTES_MAX: u64 = 64 * 1024;

/// One directory's part of the cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Cache {
    folder: PathBuf,
}

/// Held while this process orders; free again soon after it is dropped, or when its process ends.
#[derive(Debug)]
pub(super) struct Lock(Option<File>);

/// A challenge's answer that others may read; gone soon after it is dropped.
#[derive(Debug)]
pub(super) struct Published {
    file: PathBuf,
    /// Which file of that name it is: a later answer is another one's to take away.
    inode: u64,
}

impl Cache {
    pub(crate) fn of(acme: &Acme) -> Self {
        let host = acme.directory.split("://").last().and_then(|rest| rest.split(['/', ':']).next());
        let digest = ring::digest::digest(&ring::digest::SHA256, acme.directory.as_bytes());
        let digest = hex::encode(digest.as_ref().first_chunk::<4>().expect("a digest is longer"));
        Self { folder: acme.cache.join(format!("{}-{digest}", host.unwrap_or_default())) }
    }

    /// Makes the folders, for nobody else to look into.
    pub(crate) fn prepare(&self) -> Result<(), Trouble> {
        for folder in [self.certificates(), self.challenges()] {
            DirBuilder::new().recursive(true).mode(0o700).create(&folder).map_err(|error| {
                let mend = "let umavez's user write there, or name another folder in [public_tls.acme] cache";
                Trouble::new(&folder, format!("can't be made: {error}"), mend)
            })?;
        }
        Ok(())
    }

    /// Where a name's certificate is kept, with its key.
    pub(crate) fn pair(&self, name: &str) -> Pair {
        let file = self.certificates().join(format!("{name}.pem"));
        Pair { chain: file.clone(), key: file }
    }

    /// Puts a chain and its key in place, if they are of use for that name.
    pub(super) fn keep(&self, name: &str, pem: &str) -> Result<(), Trouble> {
        let pair = self.pair(name);
        let unwritten = |error: &io::Error| {
            Trouble::new(
                &pair.chain,
                format!("can't be written: {error}"),
                "make room for it, and mend its rights",
            )
        };
        let fresh = written(&self.certificates(), pem).map_err(|error| unwritten(&error))?;
        let path = fresh.path().to_owned();
        Certificate::load(&Pair { chain: path.clone(), key: path })?.is_for(name)?;
        fresh.persist(&pair.chain).map_err(|error| unwritten(&error.error))?;
        // Else the name itself may be lost with the power.
        File::open(self.certificates())
            .and_then(|folder| folder.sync_all())
            .map_err(|error| unwritten(&error))
    }

    pub(super) fn account(&self) -> io::Result<Option<String>> {
        use std::io::Read as _;
        let mut text = String::new();
        match File::open(self.account_file()) {
            Ok(file) => file.take(ACCOUNT_BYTES_MAX).read_to_string(&mut text).map(|_| Some(text)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    pub(super) fn keep_account(&self, text: &str) -> io::Result<()> {
        written(&self.folder, text)?.persist(self.account_file()).map_err(|error| error.error)?;
        Ok(())
    }

    /// An account that is used no more; its key may still be of use, to a person.
    pub(super) fn put_account_aside(&self) -> io::Result<()> {
        std::fs::rename(self.account_file(), self.folder.join("account.json.before"))
    }

    pub(super) fn account_file(&self) -> PathBuf {
        self.folder.join("account.json")
    }

    /// The right to order; none while another process has it.
    pub(super) fn lock(&self) -> io::Result<Option<Lock>> {
        let file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(0o600)
            .open(self.folder.join("lock"))?;
        match file.try_lock() {
            Ok(()) => Ok(Some(Lock(Some(file)))),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }

    pub(super) fn publish(&self, name: &str, pem: &str) -> io::Result<Published> {
        let file = self.challenge(name);
        let kept = written(&self.challenges(), pem)?.persist(&file).map_err(|error| error.error)?;
        Ok(Published { file, inode: kept.metadata()?.ino() })
    }

    pub(super) fn challenge(&self, name: &str) -> PathBuf {
        self.challenges().join(format!("{name}.pem"))
    }

    fn certificates(&self) -> PathBuf {
        self.folder.join("certificates")
    }

    fn challenges(&self) -> PathBuf {
        self.folder.join("challenges")
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        let file = self.0.take();
        beside(move || drop(file));
    }
}

impl Drop for Published {
    fn drop(&mut self) {
        let (file, inode) = (std::mem::take(&mut self.file), self.inode);
        beside(move || {
            // One that stays proves nothing to anybody once its authorization has ended.
            if file.metadata().is_ok_and(|there| there.ino() == inode) {
                std::fs::remove_file(&file).ok();
            }
        });
    }
}

/// Runs what may wait for a file system beside the runtime that this is called on, if it is one.
fn beside(work: impl FnOnce() + Send + 'static) {
    match tokio::runtime::Handle::try_current() {
        Ok(runtime) => drop(runtime.spawn_blocking(work)),
        Err(_) => work(),
    }
}

/// A file without a name of its own yet, whole on disk, readable by this user alone.
fn written(folder: &Path, text: &str) -> io::Result<tempfile::NamedTempFile> {
    let mut file = tempfile::Builder::new().prefix(".new-").tempfile_in(folder)?;
    file.write_all(text.as_bytes())?;
    file.as_file().sync_all()?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    fn cache(folder: &tempfile::TempDir) -> Cache {
        let cache = Cache { folder: folder.path().to_owned() };
        cache.prepare().unwrap();
        cache
    }

    /// A proof was taken away, and the lock given back, on the runtime that writes for the durable store: a shared file
    /// system that hung held it up.
    #[test]
    fn what_is_let_go_is_let_go_beside_the_runtime() {
        let folder = tempfile::tempdir().unwrap();
        let cache = cache(&folder);
        let runtime = tokio::runtime::Builder::new_current_thread().max_blocking_threads(1).build().unwrap();
        // The only thread that may wait for files waits.
        let (release, released) = mpsc::channel::<()>();
        runtime.spawn_blocking(move || released.recv());
        runtime.block_on(async {
            drop(cache.publish("a.example", "proof").unwrap());
            drop(cache.lock().unwrap().expect("nobody else has it"));
        });
        assert!(cache.challenge("a.example").exists());
        assert!(cache.lock().unwrap().is_none());
        release.send(()).unwrap();
        let after =
            runtime.spawn_blocking(move || (cache.challenge("a.example").exists(), cache.lock().unwrap()));
        let (there, lock) = runtime.block_on(after).unwrap();
        assert!(!there && lock.is_some());
    }

    #[test]
    fn a_proof_that_took_anothers_place_is_not_taken_away_with_that() {
        let folder = tempfile::tempdir().unwrap();
        let cache = cache(&folder);
        let (before, after) = (cache.publish("a", "one").unwrap(), cache.publish("a", "two").unwrap());
        drop(before);
        assert_eq!(std::fs::read_to_string(cache.challenge("a")).unwrap(), "two");
        drop(after);
        assert!(!cache.challenge("a").exists());
    }
}
