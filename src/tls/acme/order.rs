//! One account at the authority, and one order for one name: asked for, proved, signed, kept. Says what went wrong and
//! what would mend it; when to try again is the keeper's.

use std::error::Error as StdError;
use std::time::Duration;

use instant_acme::{
    Account, AuthorizationStatus, ChallengeType, Error, ExternalAccountKey, Identifier, NewAccount, NewOrder,
    Order, OrderStatus, Problem, RetryPolicy,
};
use serde::{Deserialize, Serialize};

use super::cache::Published;
use super::client::{Client, PutOff, Unreachable};
use super::{Acme, Cache, challenge};

/// How long the authority may take to look at a proof, and to sign.
const DECISION: RetryPolicy = RetryPolicy::new()
    .initial_delay(Duration::from_millis(500))
    .backoff(1.5)
    .timeout(Duration::from_secs(90));

/// Why there is no new certificate, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Failure {
    pub(super) kind: Kind,
    pub(super) what: String,
    pub(super) mend: &'static str,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// The directory did not hear of it: it costs none of what it allows.
    Unreachable,
    /// It was tried, and did not come off.
    Refused,
    /// The directory doesn't know our account (any more).
    AccountUnknown,
    /// Nothing can be kept.
    Cache,
}

/// The account as it is kept.
#[derive(Deserialize, Serialize)]
struct Kept {
    contacts: Vec<String>,
    external_account: Option<String>,
    /// With the account's key.
    credentials: serde_json::Value,
}

/// An account that orders.
pub(super) struct Session {
    account: Account,
    cache: Cache,
}

impl Session {
    /// The account that is kept, or a new one.
    pub(super) async fn open(acme: &Acme, cache: &Cache, put_off: &PutOff) -> Result<Self, Failure> {
        let external = acme.external_account.as_ref();
        let kept = kept(cache, external.map(|external| external.id.clone())).await?;
        let (roots, noted) = (acme.directory_ca.clone(), put_off.clone());
        let client =
            blocking(move || Client::new(roots.as_deref(), noted).map_err(|error| unreachable(&error)))
                .await?;
        let builder = Account::builder_with_http(Box::new(client));
        let contacts: Vec<&str> = acme.contacts.iter().map(String::as_str).collect();
        let (account, kept) = match kept {
            Some(kept) => {
                let credentials =
                    serde_json::from_value(kept.credentials.clone()).map_err(|e| unread(cache, &e))?;
                let account = builder.from_credentials(credentials).await?;
                if kept.contacts == acme.contacts {
                    return Ok(Self { account, cache: cache.clone() });
                }
                account.update_contacts(&contacts).await?;
                (account, Kept { contacts: acme.contacts.clone(), ..kept })
            }
            None => {
                let new = NewAccount {
                    contact: &contacts,
                    terms_of_service_agreed: true,
                    only_return_existing: false,
                };
                let key =
                    external.map(|external| ExternalAccountKey::new(external.id.clone(), &external.key));
                let (account, credentials) =
                    builder.create(&new, acme.directory.clone(), key.as_ref()).await?;
                tracing::info!(
                    directory = acme.directory,
                    account = account.id(),
                    "an ACME account was made"
                );
                let kept = Kept {
                    contacts: acme.contacts.clone(),
                    external_account: external.map(|external| external.id.clone()),
                    credentials: serde_json::to_value(credentials).map_err(Error::from)?,
                };
                (account, kept)
            }
        };
        let text = serde_json::to_string_pretty(&kept).map_err(Error::from)?;
        let kept = cache.clone();
        blocking(move || kept.keep_account(&text).map_err(|error| unwritten(&error))).await?;
        Ok(Self { account, cache: cache.clone() })
    }

    /// Has this name's certificate signed, and keeps it.
    pub(super) async fn order(&self, name: &str) -> Result<(), Failure> {
        let identifiers = [Identifier::Dns(name.to_owned())];
        let mut order = self.account.new_order(&NewOrder::new(&identifiers)).await?;
        let proofs = self.prove(name, &mut order).await?;
        match order.poll_ready(&DECISION).await {
            Ok(OrderStatus::Ready) => {}
            Ok(_) | Err(Error::Api(_)) => return Err(why_not(&mut order).await),
            Err(error) => return Err(error.into()),
        }
        drop(proofs);
        let key = order.finalize().await?;
        let chain = order.poll_certificate(&DECISION).await?;
        let (cache, name) = (self.cache.clone(), name.to_owned());
        blocking(move || {
            cache.keep(&name, &format!("{chain}\n{key}")).map_err(|trouble| Failure {
                kind: Kind::Cache,
                what: trouble.to_string(),
                mend: "let umavez's user write to [public_tls.acme] cache, and make room there",
            })
        })
        .await
    }

    /// Puts up what proves the name, and has it looked at. What the authority remembers needs no proof.
    async fn prove(&self, name: &str, order: &mut Order) -> Result<Vec<Published>, Failure> {
        let mut proofs = Vec::new();
        let mut authorizations = order.authorizations();
        while let Some(authorization) = authorizations.next().await {
            let mut authorization = authorization?;
            if authorization.status != AuthorizationStatus::Pending {
                continue; // valid, or the order's own status tells
            }
            let Some(mut challenge) = authorization.challenge(ChallengeType::TlsAlpn01) else {
                let what = "the directory offers no TLS-ALPN-01".to_owned();
                let mend =
                    "have the certificate ordered by a client that knows its challenges, and name the files";
                return Err(Failure { kind: Kind::Refused, what, mend });
            };
            let digest = challenge.key_authorization().digest();
            let proof =
                challenge::proof(name, digest.as_ref()).map_err(|error| Error::Other(error.into()))?;
            let (cache, name) = (self.cache.clone(), name.to_owned());
            proofs.push(blocking(move || cache.publish(&name, &proof).map_err(|e| unwritten(&e))).await?);
            challenge.set_ready().await?;
        }
        Ok(proofs)
    }
}

/// The account that is kept, if it is that of this customer; another one's is put aside.
async fn kept(cache: &Cache, customer: Option<String>) -> Result<Option<Kept>, Failure> {
    let cache = cache.clone();
    blocking(move || {
        let Some(text) = cache.account().map_err(|error| unread(&cache, &error))? else { return Ok(None) };
        let kept: Kept = serde_json::from_str(&text).map_err(|error| unread(&cache, &error))?;
        if kept.external_account == customer {
            return Ok(Some(kept));
        }
        cache.put_account_aside().map_err(|error| unwritten(&error))?;
        Ok(None)
    })
    .await
}

/// Runs what waits for a disk beside the runtime.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Failure> + Send + 'static,
) -> Result<T, Failure> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|error| {
        Err(Failure { kind: Kind::Cache, what: error.to_string(), mend: "report this: it is a defect" })
    })
}

/// What the authority saw when it looked.
async fn why_not(order: &mut Order) -> Failure {
    let mut authorizations = order.authorizations();
    while let Some(Ok(mut authorization)) = authorizations.next().await {
        if authorization.refresh().await.is_err() {
            continue;
        }
        if let Some(problem) = authorization.challenges.iter().find_map(|challenge| challenge.error.clone()) {
            return told(&problem, ours_to_prove);
        }
    }
    let what = "the order was refused, and the directory does not say why".to_owned();
    Failure { kind: Kind::Refused, what, mend: UNREACHED }
}

const UNREACHED: &str = "let port 443 of the name lead to this listener, for the authority too";

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        if let Error::Api(problem) = &error {
            return told(problem, ours_to_ask);
        }
        if let Error::Other(inner) = &error
            && let Some(failed) = inner.downcast_ref::<Unreachable>()
        {
            return unreachable(failed);
        }
        let (kind, mend) = if matches!(error, Error::Json(_)) {
            (Kind::Unreachable, "name an ACME directory in [public_tls.acme] directory")
        } else {
            (Kind::Refused, "it is tried again")
        };
        Self { kind, what: causes(&error), mend }
    }
}

/// What the directory says is wrong (RFC 8555, 6.7); the mend, where one fits the kind.
fn told(problem: &Problem, mend: fn(&str) -> &'static str) -> Failure {
    let kind = problem.r#type.as_deref().and_then(|kind| kind.rsplit(':').next()).unwrap_or_default();
    let (what, mend) = (problem.to_string(), mend(kind));
    let kind = if kind == "accountDoesNotExist" { Kind::AccountUnknown } else { Kind::Refused };
    Failure { kind, what, mend }
}

/// After it looked for the proof.
fn ours_to_prove(kind: &str) -> &'static str {
    match kind {
        "dns" => "point the name's A and AAAA records at this listener",
        "tls" | "unauthorized" | "incorrectResponse" => {
            "let port 443 of the name lead here as it is: what ends TLS before us, or another node, answers for us"
        }
        "caa" => "allow the authority in the name's CAA record",
        _ => UNREACHED,
    }
}

/// When it took a request.
fn ours_to_ask(kind: &str) -> &'static str {
    match kind {
        "unauthorized" => {
            "see that [public_tls.acme] external_account is what the authority gave you, and the account not closed"
        }
        "invalidContact" | "unsupportedContact" => {
            "name a mail address in [public_tls.acme] contact that it takes"
        }
        "caa" => "allow the authority in the name's CAA record",
        "rejectedIdentifier" => {
            "take the name out of [public_tls.acme] names: the authority signs no such name"
        }
        "externalAccountRequired" => {
            "set [public_tls.acme] external_account to what the authority gives its customers"
        }
        "rateLimited" => "wait: it is tried again when the directory allows it",
        "accountDoesNotExist" => "a new account is made",
        "userActionRequired" => "read the directory's new terms, and agree to them as it says",
        _ => "it is tried again; what the directory says may tell more",
    }
}

fn unreachable(error: &Unreachable) -> Failure {
    let mend = "see that it is up and can be reached from here, and that its certificate is trusted";
    Failure { kind: Kind::Unreachable, what: causes(error), mend }
}

fn unread(cache: &Cache, error: &dyn StdError) -> Failure {
    let what = format!("{}: the account can't be read: {error}", cache.account_file().display());
    Failure { kind: Kind::Cache, what, mend: "mend the file, or take it away: then a new account is made" }
}

fn unwritten(error: &std::io::Error) -> Failure {
    let mend = "let umavez's user write to [public_tls.acme] cache, and make room there";
    Failure { kind: Kind::Cache, what: format!("the cache can't be written: {error}"), mend }
}

/// An error with what caused it.
fn causes(error: &dyn StdError) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(error) = next {
        let cause = error.to_string();
        if !text.ends_with(&cause) {
            text = format!("{text}: {cause}");
        }
        next = error.source();
    }
    text
}
