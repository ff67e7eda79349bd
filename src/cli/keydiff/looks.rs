//! What a field's name and value look like: an id, a time, a word that many events share. Guesses of a kind that a
//! person would make; what fields did between the deliveries stands before them. Pure.

use umavez::providers::{Field, Stands};

/// What a field seems to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Looks {
    /// Names the event itself.
    EventId,
    /// Names a thing that events are about.
    ThingId,
    /// Names who or what was set up: the same for many events.
    AccountId,
    /// Says what kind of event it is.
    Type,
    /// Says how far a thing has come.
    Status,
    Time,
    /// Says how often it was sent, or when.
    Attempt,
    /// Made of the body, or of body and time.
    Signature,
    /// About the connection, or the machines on the way.
    Connection,
    Blank,
    /// A number or text like any other.
    Other,
}

const CONNECTION: &[&str] = &[
    "accept",
    "accept-charset",
    "accept-encoding",
    "accept-language",
    "cache-control",
    "connection",
    "content-encoding",
    "content-length",
    "content-type",
    "date",
    "expect",
    "forwarded",
    "host",
    "keep-alive",
    "origin",
    "pragma",
    "priority",
    "referer",
    "te",
    "traceparent",
    "tracestate",
    "transfer-encoding",
    "true-client-ip",
    "upgrade",
    "user-agent",
    "via",
    "x-real-ip",
    "x-request-start",
    "cdn-loop",
    "x-cloud-trace-context",
    "x-amzn-trace-id",
    "x-b3-traceid",
    "x-b3-spanid",
    "sentry-trace",
    "baggage",
];
const CONNECTION_BEGINS: &[&str] =
    &["x-forwarded-", "cf-", "x-envoy-", "x-vercel-", "fly-", "sec-", "x-b3-", "x-datadog-"];
const ATTEMPT: &[&str] =
    &["attempt", "attempts", "retry", "retries", "tries", "redelivery", "redelivered", "resend"];
const SIGNATURE: &[&str] =
    &["signature", "signatures", "sig", "hmac", "sha256", "sha1", "checksum", "digest", "mac"];
const TIME: &[&str] = &[
    "time",
    "timestamp",
    "ts",
    "date",
    "datetime",
    "at",
    "created",
    "updated",
    "sent",
    "occurred",
    "epoch",
    "when",
];
const TYPE: &[&str] = &["event", "type", "topic", "action", "kind", "trigger"];
const STATUS: &[&str] = &["status", "state", "step", "stage"];
const ID: &[&str] = &["id", "uuid", "guid", "ulid", "sid", "uid"];
// Not "message": sent, delivered and read of one message share its id.
const EVENT: &[&str] = &["event", "evt", "notification", "delivery", "idempotency"];
const ACCOUNT: &[&str] = &[
    "account",
    "user",
    "customer",
    "client",
    "merchant",
    "seller",
    "store",
    "shop",
    "tenant",
    "instance",
    "app",
    "application",
    "organization",
    "org",
    "company",
    "workspace",
    "team",
    "project",
    "partner",
    "producer",
    "affiliate",
    "buyer",
    "owner",
    "sender",
    "recipient",
    "subscription",
    "webhook",
    "hook",
    "endpoint",
    "target",
    "portal",
    "page",
    "phone",
    "product",
    "plan",
    "subscriber",
    "contact",
    "agent",
    "channel",
    "site",
    "installation",
];
const THING: &[&str] = &["transaction", "reference", "number", "code", "sku", "tid", "nsu"];
/// Headers that name the event though their words say otherwise.
const EVENT_HEADERS: &[&str] = &["webhook-id", "svix-id", "idempotency-key"];

/// What a field with this value seems to be.
pub(super) fn looks(field: &Field, value: &[u8]) -> Looks {
    let has = |list: &[&str]| field.name.iter().any(|word| list.contains(&word.as_str()));
    let last = field.name.last().map(String::as_str).unwrap_or_default();
    let header = field.part.strip_prefix("header:").filter(|_| field.stands == Stands::Header);
    if let Some(name) = header {
        if CONNECTION.contains(&name) || CONNECTION_BEGINS.iter().any(|begin| name.starts_with(begin)) {
            return Looks::Connection;
        }
        if EVENT_HEADERS.contains(&name) {
            return Looks::EventId;
        }
    }
    if value.trim_ascii().is_empty() {
        return Looks::Blank;
    }
    if has(ATTEMPT) {
        return Looks::Attempt;
    }
    if has(SIGNATURE) {
        return Looks::Signature;
    }
    let text = String::from_utf8_lossy(value);
    if is_time(&text) || (TIME.contains(&last) && text.bytes().any(|byte| byte.is_ascii_digit())) {
        return Looks::Time;
    }
    if STATUS.contains(&last) && is_word(&text) {
        return Looks::Status;
    }
    // `event` holds an id at some, the kind at most.
    if TYPE.contains(&last) && is_word(&text) {
        return Looks::Type;
    }
    id(field, last, &text, has(EVENT), has(ACCOUNT)).unwrap_or(Looks::Other)
}

fn id(field: &Field, last: &str, text: &str, of_event: bool, of_account: bool) -> Option<Looks> {
    let digits = text.bytes().any(|byte| byte.is_ascii_digit());
    if text.len() > 256 || (is_word(text) && !digits) {
        return None;
    }
    let joined = ["eventid", "notificationid", "deliveryid"].contains(&last);
    let named = ID.contains(&last) || joined || (last == "key" && of_event);
    let header_delivery = field.stands == Stands::Header && last == "delivery";
    if header_delivery || joined || (named && of_event) {
        return Some(Looks::EventId);
    }
    if named && of_account {
        return Some(Looks::AccountId);
    }
    if named && field.depth <= 1 && field.name.len() == 1 && !field.in_list {
        return Some(Looks::EventId);
    }
    let named = named || last.ends_with("id") && last.len() > 5;
    (named || THING.contains(&last) || is_unique(text)).then_some(Looks::ThingId)
}

/// Letters and the marks between them: `PURCHASE_APPROVED`, `payment.updated`, `true`; short numbers too.
fn is_word(text: &str) -> bool {
    let letters = |c: char| c.is_alphabetic() || matches!(c, '_' | '.' | '-' | ' ' | '/' | ':');
    text.chars().all(letters) || (text.len() <= 3 && text.bytes().all(|byte| byte.is_ascii_digit()))
}

/// As only an id is written: a UUID, many digits, letters and digits mixed and many of them.
pub(super) fn is_unique(text: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '=' | ':' | '.' | '+' | '/');
    let digits = text.bytes().filter(u8::is_ascii_digit).count();
    text.len() >= 8 && text.chars().all(plain) && (digits >= 8 || (text.len() >= 12 && digits >= 3))
}

/// A time of RFC 3339 or near it, or seconds or milliseconds of this century's first half.
fn is_time(text: &str) -> bool {
    let bytes = text.as_bytes();
    let date = bytes.len() >= 10
        && bytes[..10].iter().enumerate().all(|(at, byte)| match at {
            4 | 7 => matches!(byte, b'-' | b'/'),
            _ => byte.is_ascii_digit(),
        });
    let number = text.parse::<u64>().ok();
    let within = |number: u64| (1_000_000_000..2_600_000_000).contains(&number);
    date || number.is_some_and(|number| within(number) || within(number / 1000))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seems(part: &str, value: &str) -> Looks {
        let (stands, name) = match part.split_once(':') {
            Some(("header", name)) => (Stands::Header, name),
            Some(("query", name)) => (Stands::Query, name),
            Some((_, name)) => (Stands::Body, name),
            None => (Stands::Body, part.rsplit('.').next().unwrap()),
        };
        let words: Vec<String> = name
            .split(['-', '_', '.'])
            .flat_map(|word| {
                let camel = word.find(|c: char| c.is_uppercase()).filter(|at| *at > 0);
                let (first, rest) = word.split_at(camel.unwrap_or(word.len()));
                [first.to_lowercase(), rest.to_lowercase()]
            })
            .filter(|word| !word.is_empty())
            .collect();
        let depth = part.matches('.').count();
        let field = Field {
            part: part.to_owned(),
            stands,
            name: words,
            depth,
            in_list: part.contains('['),
            value: None,
            secret: false,
        };
        looks(&field, value.as_bytes())
    }

    #[test]
    fn fields_look_as_a_person_would_see_them() {
        for (part, value, wanted) in [
            ("$.id", "3f0c8b51-6e3a-4b6e-9c0e-2f1f2d9f2a11", Looks::EventId),
            ("$.id", "evt_00000001", Looks::EventId),
            ("$.id", "12345", Looks::EventId),
            ("$.eventId", "5", Looks::EventId),
            ("$.id", "pending", Looks::Other),
            ("$.eventId", "1234", Looks::EventId),
            ("$.event_id", "Ev08MFMKH6", Looks::EventId),
            ("header:webhook-id", "msg_1", Looks::EventId),
            ("header:x-github-delivery", "72d3162e-cc78-11e3-81ab-4c9367dc0958", Looks::EventId),
            ("$.data.id", "12345", Looks::ThingId),
            ("form:MessageSid", "SM00000001", Looks::ThingId),
            ("$.messageid", "12345", Looks::ThingId),
            ("$.data.purchase.transaction", "HP123456", Looks::ThingId),
            ("$.order", "9f86d081884c7d659a2f", Looks::ThingId),
            ("$.user_id", "44444", Looks::AccountId),
            ("$.webhookId", "44444", Looks::AccountId),
            ("$.event", "PURCHASE_APPROVED", Looks::Type),
            ("header:x-shopify-topic", "orders/create", Looks::Type),
            ("$.data.status", "APPROVED", Looks::Status),
            ("$.creation_date", "1786363200000", Looks::Time),
            ("$.at", "2026-08-10T12:00:00Z", Looks::Time),
            ("header:x-retry-num", "1", Looks::Attempt),
            ("$.attemptNumber", "0", Looks::Attempt),
            ("header:x-hub-signature-256", "sha256=00", Looks::Signature),
            ("header:host", "hooks.example.com", Looks::Connection),
            ("header:x-forwarded-for", "10.0.0.1", Looks::Connection),
            ("$.id", " ", Looks::Blank),
            ("$.version", "2.0.0", Looks::Other),
            ("$.name", "Maria", Looks::Other),
        ] {
            assert_eq!(seems(part, value), wanted, "{part} = {value}");
        }
    }
}
