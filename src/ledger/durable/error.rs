//! Why the durable store gave no answer. None of it is a verdict: an error never reads as "seen" nor as "new".

use std::sync::Arc;
use std::time::Duration;

/// What the caller can do about it.
#[derive(Clone, Debug, thiserror::Error)]
pub enum DurableError {
    /// Treat the event by its route's policy for a durable store that is down.
    #[error("the durable store cannot be used")]
    Unavailable(#[source] Arc<Trouble>),
    /// The same, at once: too many writes wait already, and one more would only wait too long.
    #[error("too many writes wait for the durable store")]
    Full,
    /// Do not start: no waiting mends this.
    #[error("the durable store does not fit")]
    Unfit(#[source] Arc<Unfit>),
}

/// What went wrong between this process and the database.
#[derive(Debug, thiserror::Error)]
pub enum Trouble {
    #[error("the database did not answer within {0:?}")]
    Slow(Duration),
    #[error("the database at {server} cannot be reached")]
    Away {
        server: String,
        #[source]
        source: sqlx::Error,
    },
    #[error("the database cannot be reached")]
    Lost(#[source] sqlx::Error),
    #[error("the database refused")]
    Refused(#[source] sqlx::Error),
    #[error("the database takes no writes: it is a replica, or was made read-only")]
    ReadOnly,
    #[error("commits wait for a synchronous replica that does not confirm them")]
    Unconfirmed,
    #[error(
        "the file {path} was removed or replaced while it was in use: put it back, or restart umavez, which begins with \
         what is there"
    )]
    Moved { path: String },
    #[error("the database is down, and is tried again every {0:?}")]
    Down(Duration),
    #[error("the rows changed under the claim again and again")]
    Contended,
    #[error("the store is closed")]
    Closed,
    #[error(transparent)]
    Unfit(#[from] Unfit),
}

/// What a person must mend before the store can be used.
#[derive(Debug, thiserror::Error)]
pub enum Unfit {
    #[error("the durable store's URL cannot be read")]
    Url(#[source] sqlx::Error),
    #[error(
        "the database holds tables of a newer version of umavez (schema {found}, this version knows {known}): \
         run that version, or give this one a database of its own"
    )]
    Newer { found: i64, known: i64 },
    #[error(
        "the role may not create the tables: `grant create on schema public to` it, or start umavez once with \
         a role that may, and grant this one select, insert, update, delete on the umavez_ tables"
    )]
    NoCreate(#[source] sqlx::Error),
    #[error(
        "the database's encoding is {found}, which can't hold every key: make the database anew with \
         `create database … encoding 'UTF8' template template0`"
    )]
    Encoding { found: String },
    #[error(
        "the table {table} is gone, though umavez_migration says that it was made: restore it from a backup; or, to \
         begin with an empty ledger, in which every event is new, drop what is left of the umavez_ tables"
    )]
    Gone { table: &'static str },
    #[error("the file {path} is used by another umavez process: one process to a file, or take Postgres")]
    Shared { path: String },
    #[error("the file {path} cannot be opened for writing")]
    File {
        path: String,
        #[source]
        source: std::io::Error,
    },
}

impl From<Trouble> for DurableError {
    fn from(trouble: Trouble) -> Self {
        Self::Unavailable(Arc::new(trouble))
    }
}

/// What to do after a statement failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mend {
    /// The same again on the same connection: the database undid it to let another transaction pass.
    Again,
    /// A new connection, then once more: the connection is gone, and perhaps only the answer was lost.
    Reconnect,
    /// Smaller batches, down to each write alone: one of them may be what the database cannot store, give or wait for.
    Apart,
    /// Nothing: the database has no room, or no time was left.
    Refuse,
}

impl Mend {
    pub(super) fn of(error: &sqlx::Error) -> Self {
        if is_unreadable(error) {
            return Self::Apart;
        }
        let sqlx::Error::Database(refusal) = error else { return Self::Reconnect };
        let code = refusal.code().unwrap_or_default();
        match code.as_ref() {
            // Serialization failure, deadlock; SQLite's BUSY and LOCKED.
            "40001" | "40P01" | "5" | "6" | "261" | "517" => Self::Again,
            // A prepared statement that is unknown, doubled, or whose plan went stale.
            "26000" | "42P05" | "0A000" => Self::Reconnect,
            // The server takes no writes any more: behind its name, or beside it, may be one that does.
            "25006" => Self::Reconnect,
            code if code.starts_with("08") || code.starts_with("57P") => Self::Reconnect,
            // The statement's time was over; the disk is full; no connection is left. SQLite's FULL and READONLY.
            "57014" | "53100" | "53300" | "13" | "8" => Self::Refuse,
            // What a row holds, what a right, a table or a trigger is missing for some rows only, whose row somebody
            // has locked: it may be one caller's. Where it is everybody's, that has been found out quickly.
            _ => Self::Apart,
        }
    }
}

/// The database answered, and a row of it holds what no version of ours writes.
fn is_unreadable(error: &sqlx::Error) -> bool {
    use sqlx::Error;
    matches!(
        error,
        Error::Decode(_)
            | Error::ColumnDecode { .. }
            | Error::ColumnIndexOutOfBounds { .. }
            | Error::ColumnNotFound(_)
            | Error::TypeNotFound { .. }
            | Error::Encode(_)
            | Error::InvalidArgument(_)
    )
}

/// An error and its causes in one line.
pub(super) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}
