//! The ledger in one SQLite file, for a gateway on its own. One process to a file; a lock file that the kernel
//! frees with the process says so to a second one.

mod batch;
mod desk;
mod schema;
mod sql;

use std::fs::{File, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use sqlx::query::Query;
use sqlx::sqlite::{
    SqliteArguments, SqliteAutoVacuum, SqliteConnectOptions, SqliteJournalMode, SqliteRow, SqliteSynchronous,
};
use sqlx::{ConnectOptions as _, Executor as _, Row as _, SqliteConnection};
use tokio::sync::{Mutex, OwnedMutexGuard};

use super::State;
use super::error::{Trouble, Unfit};
use super::row::Row;
use crate::ledger::claim::{Digest, Fence, Fingerprint};

/// The rights of a file that is made: its owner's alone.
const PRIVATE: u32 = 0o600;
/// The write-ahead log is cut back to this length whenever it has been folded into the file.
const WAL_BYTES_MAX: &str = "67108864";

/// The file, and who may write in it.
#[derive(Debug)]
pub(super) struct Sqlite {
    options: SqliteConnectOptions,
    /// How long one transaction may take; a disk slower than this counts as gone.
    pub(super) timeout: Duration,
    /// One transaction writes at a time: a queue here is fair, SQLite's own busy wait is not.
    pen: Arc<Mutex<()>>,
    path: PathBuf,
    /// The file that the path led to when it was opened first: its device and number.
    opened: OnceLock<(u64, u64)>,
    /// Locked as long as this process uses the file.
    _lock: File,
}

impl Sqlite {
    pub(super) fn new(path: &Path, timeout: Duration) -> Result<Self, Unfit> {
        let options = SqliteConnectOptions::new()
            .filename(path)
            .create_if_missing(true)
            .auto_vacuum(SqliteAutoVacuum::Incremental)
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(SqliteSynchronous::Full)
            .busy_timeout(timeout)
            .pragma("journal_size_limit", WAL_BYTES_MAX)
            .pragma("cache_size", "-8192")
            .disable_statement_logging();
        let lock = lock(path)?;
        create(path)?;
        let (path, pen) = (path.to_owned(), Arc::new(Mutex::new(())));
        Ok(Self { options, timeout, pen, path, opened: OnceLock::new(), _lock: lock })
    }

    pub(super) async fn connect(&self) -> Result<Link, Trouble> {
        // Where it was taken away, SQLite would begin a new one here, and forget all events.
        self.in_place()?;
        let connection = self.options.connect().await.map_err(Trouble::Lost)?;
        if let Some(opened) = led_to(&self.path) {
            self.opened.get_or_init(|| opened);
        }
        self.in_place()?;
        let mut link = Link { connection, pen: Arc::clone(&self.pen) };
        schema::bring_up(&mut link).await?;
        Ok(link)
    }

    /// Whether the path still leads to the file that is open. What is written to one that was taken away is gone with the
    /// process, and what lies in its place by now knows nothing of its events.
    pub(super) fn in_place(&self) -> Result<(), Trouble> {
        match self.opened.get() {
            Some(opened) if led_to(&self.path) != Some(*opened) => {
                Err(Trouble::Moved { path: self.path.display().to_string() })
            }
            Some(_) | None => Ok(()),
        }
    }
}

/// The file that a path leads to: its device and number.
fn led_to(path: &Path) -> Option<(u64, u64)> {
    std::fs::metadata(path).ok().map(|file| (file.dev(), file.ino()))
}

/// Makes the file before SQLite would, which lets everybody read it: it holds requests, and tokens in them. What
/// SQLite puts beside it is as private as the file. One that is there keeps the rights that somebody gave it.
fn create(path: &Path) -> Result<(), Unfit> {
    match OpenOptions::new().write(true).create_new(true).mode(PRIVATE).open(path) {
        Ok(_empty) => Ok(()),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
        Err(source) => Err(Unfit::File { path: path.display().to_string(), source }),
    }
}

fn lock(path: &Path) -> Result<File, Unfit> {
    // Beside the file itself: two names of one file have one lock.
    let mut name = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned()).into_os_string();
    name.push(".lock");
    let name = PathBuf::from(name);
    let text = || path.display().to_string();
    let mut options = OpenOptions::new();
    let file = options
        .write(true)
        .create(true)
        .truncate(true)
        .mode(PRIVATE)
        .open(&name)
        .map_err(|source| Unfit::File { path: text(), source })?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(std::fs::TryLockError::WouldBlock) => Err(Unfit::Shared { path: text() }),
        Err(std::fs::TryLockError::Error(source)) => Err(Unfit::File { path: text(), source }),
    }
}

/// One connection.
#[derive(Debug)]
pub(super) struct Link {
    connection: SqliteConnection,
    pen: Arc<Mutex<()>>,
}

impl Link {
    /// Begins a transaction that may write. The pen is given back when the guard goes.
    async fn begin(&mut self) -> Result<(OwnedMutexGuard<()>, i64), sqlx::Error> {
        let pen = Arc::clone(&self.pen).lock_owned().await;
        self.connection.execute(sqlx::raw_sql("begin immediate")).await?;
        let now = self.now().await?;
        Ok((pen, now))
    }

    async fn commit(&mut self) -> Result<(), sqlx::Error> {
        self.connection.execute(sqlx::raw_sql("commit")).await.map(drop)
    }

    pub(super) async fn roll_back(&mut self) -> Result<(), sqlx::Error> {
        // Outside a transaction this is refused, and there was nothing to undo.
        drop(self.connection.execute(sqlx::raw_sql("rollback")).await);
        Ok(())
    }

    /// The one clock: the machine's, read through SQL.
    async fn now(&mut self) -> Result<i64, sqlx::Error> {
        sqlx::query(sql::NOW).fetch_one(&mut self.connection).await?.try_get(0)
    }

    async fn run(&mut self, query: Query<'_, sqlx::Sqlite, SqliteArguments>) -> Result<u64, sqlx::Error> {
        Ok(query.execute(&mut self.connection).await?.rows_affected())
    }
}

fn row(from: &SqliteRow) -> Result<Row, sqlx::Error> {
    Ok(Row {
        digest: Digest(number(&from.try_get::<Vec<u8>, _>(0)?)?),
        state: state(from.try_get(1)?)?,
        fence: Fence(from.try_get(2)?),
        attempts: u32::try_from(from.try_get::<i64, _>(3)?).unwrap_or(0),
        first_claimed: from.try_get(4)?,
        lease_until: from.try_get(5)?,
        expires: from.try_get(6)?,
        fingerprint: Fingerprint(from.try_get(7)?),
        receipt: from.try_get(8)?,
    })
}

fn state(number: i64) -> Result<State, sqlx::Error> {
    State::from_number(number)
        .ok_or_else(|| sqlx::Error::Decode(format!("state {number} is of no version this one knows").into()))
}

fn number(bytes: &[u8]) -> Result<u128, sqlx::Error> {
    let bytes = bytes.try_into().map_err(|_| sqlx::Error::Decode("an id is not of 16 bytes".into()))?;
    Ok(u128::from_be_bytes(bytes))
}

fn blob(number: u128) -> Vec<u8> {
    number.to_be_bytes().to_vec()
}
