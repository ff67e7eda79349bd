//! What a field's name and value look like: an id, a time, a word that many events share. Guesses of a kind that a
//! person would make; what fields did between the deliveries stands before them. Pure.

use umavez::providers::{Field, Stands};

use super::words::{
    ABOUT, ACCOUNT, ATTEMPT, CODE, CONNECTION, CONNECTION_BEGINS, EVENT, EVENT_HEADERS, ID, SIGNATURE,
    STATUS, THING, TIME, TYPE, plain,
};

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

/// What a field with this value seems to be.
pub(super) fn looks(field: &Field, value: &[u8]) -> Looks {
    let name: Vec<String> = field.name.iter().map(|word| plain(word)).collect();
    let has = |list: &[&str]| name.iter().any(|word| list.contains(&word.as_str()));
    let last = name.last().map(String::as_str).unwrap_or_default();
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
    // A signature or a subscription in Portuguese; a signature or a company in Spanish.
    let written = matches!(last, "assinatura" | "firma") && value.len() >= 40;
    if has(SIGNATURE) || written {
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
    let names_it = has(EVENT) && name.first().is_some_and(|word| ID.contains(&word.as_str()));
    if TYPE.contains(&last) && is_word(&text) && !names_it {
        return Looks::Type;
    }
    id(field, &name, &text).unwrap_or(Looks::Other)
}

fn id(field: &Field, name: &[String], text: &str) -> Option<Looks> {
    let digits = text.bytes().any(|byte| byte.is_ascii_digit());
    if text.len() > 256 || (is_word(text) && !digits) {
        return None;
    }
    let has = |list: &[&str]| name.iter().any(|word| list.contains(&word.as_str()));
    let last = name.last().map(String::as_str).unwrap_or_default();
    // `order_id` in English, `id_pedido` as well in Portuguese and Spanish.
    let ends = |list: &[&str]| {
        list.contains(&last) || name.first().is_some_and(|word| list.contains(&word.as_str()))
    };
    let joined = ["eventid", "notificationid", "deliveryid", "eventoid", "idevento"].contains(&last);
    let named = ends(ID) || joined || (last == "key" && has(EVENT));
    let header_delivery = field.stands == Stands::Header && last == "delivery";
    if header_delivery || joined || (named && has(EVENT)) {
        return Some(Looks::EventId);
    }
    if (named || ends(CODE)) && has(ACCOUNT) {
        return Some(Looks::AccountId);
    }
    if named && field.depth <= 1 && name.len() == 1 && !field.in_list {
        return Some(Looks::EventId);
    }
    let named = named || last.ends_with("id") && last.len() > 5;
    (named || THING.contains(&last) || ends(CODE) || is_unique(text)).then_some(Looks::ThingId)
}

/// What the field is of, by its own name or, where that is no more than `id` or `code`, by what it stands in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Of {
    Event,
    /// Of what events are usually about.
    Thing,
    Account,
    Unknown,
}

/// What an id is of.
pub(super) fn of(field: &Field) -> Of {
    let mut name: Vec<String> = field.name.iter().map(|word| plain(word)).collect();
    let bare = |word: &String| ID.contains(&word.as_str()) || CODE.contains(&word.as_str());
    if name.iter().all(bare) {
        let parent = field.part.rsplit(['.', '/']).nth(1).unwrap_or_default();
        let parent: String = parent.chars().take_while(|c| *c != '[').collect();
        name = words(&plain(&parent));
    }
    let has = |list: &[&str]| name.iter().any(|word| list.contains(&word.as_str()));
    match () {
        () if has(EVENT) => Of::Event,
        () if has(ABOUT) || has(THING) => Of::Thing,
        () if has(ACCOUNT) => Of::Account,
        () => Of::Unknown,
    }
}

/// `pedidoPago` and `pedido_pago` in lower-case words.
fn words(name: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut before = 'A';
    for c in name.chars() {
        if !c.is_alphanumeric() || (c.is_uppercase() && before.is_lowercase()) {
            words.push(String::new());
        }
        if c.is_alphanumeric() {
            words.last_mut().expect("one at least").extend(c.to_lowercase());
        }
        before = c;
    }
    words
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
    // As in Brazil, Portugal and Spain: 10/08/2026.
    let date = date
        || bytes.len() >= 10
            && bytes[..10].iter().enumerate().all(|(at, byte)| match at {
                2 | 5 => *byte == b'/',
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
            ("$.evento_id", "5", Looks::EventId),
            ("$.idEvento", "5", Looks::EventId),
            ("$.identificador", "12345", Looks::EventId),
            ("$.transacao", "T-1", Looks::ThingId),
            ("$.transação", "T-1", Looks::ThingId),
            ("$.pedido_id", "10441", Looks::ThingId),
            ("$.id_pedido", "10441", Looks::ThingId),
            ("$.numero_pedido", "10441", Looks::ThingId),
            ("$.evento.codigo", "EV-88213", Looks::ThingId),
            ("$.loja_id", "77", Looks::AccountId),
            ("$.id_tienda", "77", Looks::AccountId),
            ("$.codigo_cliente", "C-77", Looks::AccountId),
            ("$.assinatura_id", "S-77", Looks::AccountId),
            ("$.suscripción_id", "S-77", Looks::AccountId),
            ("$.assinatura", "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b", Looks::Signature),
            ("$.evento", "PAGO", Looks::Type),
            ("$.tipo", "pedido.pago", Looks::Type),
            ("$.situacao", "aprovado", Looks::Status),
            ("$.situação", "aprovado", Looks::Status),
            ("$.estado", "pagado", Looks::Status),
            ("$.tentativa", "1", Looks::Attempt),
            ("$.intento", "1", Looks::Attempt),
            ("$.criado_em", "20260810120000", Looks::Time),
            ("$.data", "10/08/2026", Looks::Time),
            ("$.fecha", "10/08/2026 12:00", Looks::Time),
        ] {
            assert_eq!(seems(part, value), wanted, "{part} = {value}");
        }
    }
}
