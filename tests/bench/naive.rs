//! The straightforward version of a deduplicating gateway, as a peer to measure against: per request a JSON DOM,
//! one `SET NX EX`, one `INSERT … ON CONFLICT DO NOTHING RETURNING`, then the forward through a pooled client.
//! It settles nothing, checks no signature, and keeps no receipt: what many teams write first.

use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr};

use anyhow::Context as _;
use bytes::Bytes;
use clap::Parser;
use fred::prelude::{Builder, ClientLike, Config, Expiration, KeysInterface, Pool, SetOptions};
use http::{HeaderValue, StatusCode, uri};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioIo};
use sqlx::postgres::{PgPool, PgPoolOptions};

type Body = BoxBody<Bytes, hyper::Error>;

const TABLE: &str =
    "create table if not exists seen (key text primary key, at timestamptz not null default now())";
const CLAIM: &str = "insert into seen (key) values ($1) on conflict do nothing returning key";
const REMEMBER_SECONDS: i64 = 86_400;

#[derive(Debug, Parser)]
struct Args {
    #[arg(long)]
    port: u16,
    /// Authority of the app, as `127.0.0.1:3000`.
    #[arg(long)]
    upstream: uri::Authority,
    #[arg(long)]
    redis: String,
    #[arg(long)]
    postgres: String,
    #[arg(long, default_value_t = 8)]
    redis_connections: usize,
    #[arg(long, default_value_t = 32)]
    postgres_connections: u32,
}

#[derive(Clone)]
struct Gateway {
    client: Client<HttpConnector, Full<Bytes>>,
    redis: Pool,
    postgres: PgPool,
    upstream: uri::Authority,
}

impl Gateway {
    async fn build(args: &Args) -> anyhow::Result<Self> {
        let redis =
            Builder::from_config(Config::from_url(&args.redis)?).build_pool(args.redis_connections)?;
        redis.init().await.context("connecting to redis")?;
        let postgres = PgPoolOptions::new()
            .min_connections(args.postgres_connections)
            .max_connections(args.postgres_connections)
            .test_before_acquire(false)
            .connect(&args.postgres)
            .await
            .context("connecting to postgres")?;
        sqlx::query(TABLE).execute(&postgres).await?;
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        let client = Client::builder(TokioExecutor::new()).pool_max_idle_per_host(512).build(connector);
        Ok(Self { client, redis, postgres, upstream: args.upstream.clone() })
    }

    async fn handle(&self, request: Request<Incoming>) -> anyhow::Result<Response<Body>> {
        let (mut parts, body) = request.into_parts();
        let body = body.collect().await?.to_bytes();
        let document: serde_json::Value = serde_json::from_slice(&body)?;
        let id = document.get("id").and_then(|id| id.as_str()).context("the event has no id")?;
        if !self.is_first(id).await? {
            return Ok(duplicate());
        }
        let mut target = uri::Parts::from(parts.uri);
        target.scheme = Some(uri::Scheme::HTTP);
        target.authority = Some(self.upstream.clone());
        parts.uri = uri::Uri::from_parts(target)?;
        let answer = self.client.request(Request::from_parts(parts, Full::new(body))).await?;
        Ok(answer.map(BodyExt::boxed))
    }

    async fn is_first(&self, id: &str) -> anyhow::Result<bool> {
        let expiry = Some(Expiration::EX(REMEMBER_SECONDS));
        let set: Option<String> =
            self.redis.set(format!("naive:{id}"), "1", expiry, Some(SetOptions::NX), false).await?;
        if set.is_none() {
            return Ok(false);
        }
        let row: Option<String> = sqlx::query_scalar(CLAIM).bind(id).fetch_optional(&self.postgres).await?;
        Ok(row.is_some())
    }
}

fn duplicate() -> Response<Body> {
    let mut response = plain(StatusCode::OK, r#"{"status":"duplicate"}"#);
    response.headers_mut().insert("idempotency-replayed", HeaderValue::from_static("true"));
    response
}

fn plain(status: StatusCode, body: &'static str) -> Response<Body> {
    let body = Full::new(Bytes::from_static(body.as_bytes())).map_err(|never| match never {}).boxed();
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response
}

async fn serve(args: Args) -> anyhow::Result<()> {
    let gateway = Gateway::build(&args).await?;
    let listener = tokio::net::TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, args.port))).await?;
    let tasks = tokio_util::task::TaskTracker::new();
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        let gateway = gateway.clone();
        tasks.spawn(async move {
            let service = service_fn(|request| async {
                let response = gateway.handle(request).await.unwrap_or_else(|error| {
                    eprintln!("{error:#}");
                    plain(StatusCode::BAD_GATEWAY, "error")
                });
                Ok::<_, Infallible>(response)
            });
            if let Err(error) = hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(stream), service)
                .await
            {
                eprintln!("{error}");
            }
        });
    }
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(serve(args))
}
