//! The four pairs of stores that a story runs on. Redis and, where a story kills it, Postgres are its own; other
//! stories share one Postgres while any of them runs, each with a database of its own.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, Weak};

use super::postgres::Postgres;
use super::redis::Redis;

/// A hot store and a durable store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pair {
    /// In the process, and SQLite.
    Embedded,
    MemoryPostgres,
    RedisSqlite,
    RedisPostgres,
}

impl Pair {
    fn redis(self) -> bool {
        matches!(self, Self::RedisSqlite | Self::RedisPostgres)
    }

    fn postgres(self) -> bool {
        matches!(self, Self::MemoryPostgres | Self::RedisPostgres)
    }
}

/// Instantiates stories once for each pair of stores: `async fn story(pair: Pair)`.
macro_rules! on_every_store {
    ($($story:ident),+ $(,)?) => { $(
        $crate::support::on_stores! {
            $story: embedded Embedded, memory_postgres MemoryPostgres, redis_sqlite RedisSqlite,
            redis_postgres RedisPostgres
        }
    )+ };
}
pub(crate) use on_every_store;

/// Instantiates a story on some of them, each under a name.
macro_rules! on_stores {
    ($story:ident: $($name:ident $pair:ident),+) => {
        mod $story {
            use crate::support::Pair;

            $(
                #[tokio::test]
                async fn $name() {
                    super::$story(Pair::$pair).await;
                }
            )+
        }
    };
}
pub(crate) use on_stores;

/// The stores of one story, and the configuration that names them.
pub(crate) struct Stores {
    redis: Option<Redis>,
    postgres: Option<Database>,
}

enum Database {
    Own(Box<Postgres>),
    Shared { server: Arc<Postgres>, name: String },
}

impl Stores {
    pub(crate) async fn open(pair: Pair) -> Self {
        super::patience::begin();
        let redis = if pair.redis() { Some(Redis::start().await) } else { None };
        let postgres = if pair.postgres() { Some(blocking(Database::shared).await) } else { None };
        Self { redis, postgres }
    }

    /// With a Postgres that nobody else uses: it may be stopped and killed.
    pub(crate) async fn open_own(pair: Pair) -> Self {
        super::patience::begin();
        let redis = if pair.redis() { Some(Redis::start().await) } else { None };
        let postgres = if pair.postgres() {
            Some(blocking(|| Database::Own(Box::new(Postgres::start()))).await)
        } else {
            None
        };
        Self { redis, postgres }
    }

    pub(crate) fn redis(&self) -> &Redis {
        self.redis.as_ref().unwrap()
    }

    pub(crate) fn redis_mut(&mut self) -> &mut Redis {
        self.redis.as_mut().unwrap()
    }

    /// The server, of a story that opened its own.
    pub(crate) fn postgres_mut(&mut self) -> &mut Postgres {
        match self.postgres.as_mut().unwrap() {
            Database::Own(postgres) => postgres,
            Database::Shared { .. } => panic!("a shared Postgres is not to be stopped: open_own"),
        }
    }

    pub(crate) fn has_redis(&self) -> bool {
        self.redis.is_some()
    }

    pub(crate) fn has_postgres(&self) -> bool {
        self.postgres.is_some()
    }

    pub(crate) fn redis_url(&self) -> String {
        self.redis().url()
    }

    pub(crate) fn postgres_url(&self) -> String {
        match self.postgres.as_ref().unwrap() {
            Database::Own(postgres) => postgres.url(),
            Database::Shared { server, name } => {
                let url = server.url();
                let (base, _) = url.rsplit_once('/').unwrap();
                format!("{base}/{name}")
            }
        }
    }

    /// Runs SQL as the database's owner; one row a line, columns split by `|`.
    pub(crate) fn sql(&self, sql: &str) -> String {
        let psql = std::process::Command::new("psql")
            .args(["-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-d", &self.postgres_url(), "-c", sql])
            .output()
            .unwrap();
        assert!(psql.status.success(), "{sql}: {}", String::from_utf8_lossy(&psql.stderr));
        String::from_utf8_lossy(&psql.stdout).trim_end().to_owned()
    }

    /// The configuration's `[hot]` and `[durable]` tables; nothing where the embedded one is meant.
    pub(crate) fn toml(&self) -> String {
        let hot = self.redis.as_ref().map(|redis| hot_toml(&redis.url())).unwrap_or_default();
        let durable = self.postgres.as_ref().map(|_| durable_toml(&self.postgres_url())).unwrap_or_default();
        format!("{hot}{durable}")
    }

    /// The same, with nodes that answer copies from what they remember themselves, as they do unless told otherwise.
    pub(crate) fn near_toml(&self) -> String {
        near(&self.toml())
    }
}

/// What a story says of the stores would else go unseen: nodes would answer without them.
const NOT_NEAR: &str = "near_ttl = \"0s\"\n";

/// These tables for nodes that do.
pub(crate) fn near(toml: &str) -> String {
    toml.replace(NOT_NEAR, "")
}

/// A `[hot]` table for tests: a busy machine's Redis may take longer than the default patience.
pub(crate) fn hot_toml(url: &str) -> String {
    format!("[hot]\nurl = \"{url}\"\ntimeout = \"500ms\"\n{NOT_NEAR}")
}

pub(crate) fn durable_toml(url: &str) -> String {
    format!("[durable]\nurl = \"{url}\"\n")
}

impl Database {
    fn shared() -> Self {
        static SERVER: Mutex<Weak<Postgres>> = Mutex::new(Weak::new());
        static DATABASES: AtomicU32 = AtomicU32::new(0);
        let server = {
            let mut running = SERVER.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            running.upgrade().unwrap_or_else(|| {
                let server = Arc::new(Postgres::start());
                *running = Arc::downgrade(&server);
                server
            })
        };
        let name = format!("story_{}", DATABASES.fetch_add(1, Ordering::Relaxed));
        server.sql(&format!("create database {name}"));
        Self::Shared { server, name }
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        if let Self::Shared { server, name } = self
            && !std::thread::panicking()
        {
            server.sql(&format!("drop database {name} with (force)"));
        }
    }
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(work).await.unwrap()
}
