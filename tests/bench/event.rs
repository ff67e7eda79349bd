//! Deliveries to send: unique or repeated ids in a body made once, signed for each request as Stripe or Meta signs.
//! A copy has the same body as its first, byte for byte; only Stripe's timestamp moves, as in real retries.

use std::io::Write as _;

use ring::hmac;
use umavez::clock::Clock;

/// Where an id stands in a body until a request is written.
const ID_SLOT: &[u8] = b"evt_000000000000000000000000";
const FLAT_BYTES: usize = 1024;
const NESTED_BYTES: usize = 4096;
/// As many messages as a WhatsApp delivery holds at the most.
const BATCH_ITEMS: u64 = 1000;
/// Odd, so that multiplying by it gives each number another id, far from its neighbour's.
const SPREAD: u64 = 0x9E37_79B9_7F4A_7C15;

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Shape {
    /// 1 KiB, most of it one string.
    Flat,
    /// 4 KiB of small objects in arrays in objects.
    Nested,
    /// 1,000 WhatsApp messages, about 600 KB, all new or all copies. Goes to `/webhooks/meta` unless told otherwise.
    Batch,
}

/// One request's event.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Event {
    number: u64,
    pub(crate) copy: bool,
}

/// Makes requests, and remembers which events finished so that copies can be made of them.
pub(crate) struct Events {
    head: Vec<u8>,
    body: Vec<u8>,
    /// Where the ids of its items stand.
    ids_at: Vec<usize>,
    shape: Shape,
    key: Option<hmac::Key>,
    /// Keeps ids of different runs and threads apart.
    run: u32,
    next: u64,
    random: u64,
    copies: f64,
    finished: Vec<u64>,
    finished_max: usize,
    oldest: usize,
}

impl Events {
    pub(crate) fn new(args: &crate::Args) -> Self {
        let body = match args.body {
            Shape::Flat => flat(),
            Shape::Nested => nested(),
            Shape::Batch => batch(),
        };
        let path = args.path.as_deref().unwrap_or(match args.body {
            Shape::Flat | Shape::Nested => "/webhooks/stripe",
            Shape::Batch => "/webhooks/meta",
        });
        let head = format!(
            "POST {path} HTTP/1.1\r\nHost: hooks.example.com\r\nContent-Type: application/json; charset=utf-8\r\n\
             User-Agent: bench-load\r\nAccept: */*\r\nContent-Length: {}\r\n",
            body.len()
        );
        Self {
            head: head.into_bytes(),
            ids_at: memchr::memmem::find_iter(&body, ID_SLOT).collect(),
            body,
            shape: args.body,
            key: args.secret.as_ref().map(|secret| hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes())),
            run: rand::random(),
            next: 0,
            random: rand::random::<u64>() | 1,
            copies: args.copies,
            finished: Vec::with_capacity(args.recent),
            finished_max: args.recent.max(1),
            oldest: 0,
        }
    }

    /// Writes one request into `out`, replacing what was there.
    pub(crate) fn write(&mut self, out: &mut Vec<u8>) -> Event {
        let event = self.choose();
        let items = u64::try_from(self.ids_at.len()).unwrap_or(u64::MAX);
        for (item, at) in (0..).zip(&self.ids_at) {
            let number = event.number.wrapping_mul(items).wrapping_add(item);
            let id = format!("evt_{:08x}{:016x}", self.run, number.wrapping_mul(SPREAD));
            if let Some(slot) = self.body.get_mut(*at..at + ID_SLOT.len()) {
                slot.copy_from_slice(id.as_bytes());
            }
        }
        out.clear();
        out.extend_from_slice(&self.head);
        if let Some(key) = &self.key {
            let mut signed = hmac::Context::with_key(key);
            if self.shape == Shape::Batch {
                out.extend_from_slice(b"X-Hub-Signature-256: sha256=");
            } else {
                let seconds = Clock::System.now().seconds();
                signed.update(format!("{seconds}.").as_bytes());
                write!(out, "Stripe-Signature: t={seconds},v1=").expect("a Vec takes everything");
            }
            signed.update(&self.body);
            let mut hex = [0_u8; 64];
            hex::encode_to_slice(signed.sign(), &mut hex).expect("32 bytes are 64 digits");
            out.extend_from_slice(&hex);
            out.extend_from_slice(b"\r\n");
        }
        out.extend_from_slice(b"\r\n");
        out.extend_from_slice(&self.body);
        event
    }

    /// The event was answered: from now on copies may be made of it.
    pub(crate) fn finished(&mut self, event: Event) {
        if event.copy {
            return;
        }
        if self.finished.len() < self.finished_max {
            self.finished.push(event.number);
        } else if let Some(slot) = self.finished.get_mut(self.oldest) {
            *slot = event.number;
            self.oldest = (self.oldest + 1) % self.finished_max;
        }
    }

    fn choose(&mut self) -> Event {
        // 2^32 as a share: f64 holds every u32 exactly.
        let dice = f64::from(u32::try_from(self.random() >> 32).unwrap_or(u32::MAX)) / f64::from(u32::MAX);
        let chosen = usize::try_from(self.random() >> 16).unwrap_or(0) % self.finished.len().max(1);
        if dice < self.copies
            && let Some(number) = self.finished.get(chosen)
        {
            return Event { number: *number, copy: true };
        }
        self.next += 1;
        Event { number: self.next, copy: false }
    }

    /// Xorshift: cheap, and even enough to choose copies by.
    fn random(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random
    }
}

fn flat() -> Vec<u8> {
    let start = format!(
        r#"{{"id":"{}","object":"event","api_version":"2026-06-30","created":1786363197,"livemode":true,"type":"invoice.paid","data":{{"object":{{"id":"in_1","object":"invoice","amount_paid":19700,"currency":"brl","status":"paid","description":""#,
        String::from_utf8_lossy(ID_SLOT)
    );
    padded(&start, r#""}},"pending_webhooks":1,"request":{"id":null,"idempotency_key":null}}"#, FLAT_BYTES)
}

fn nested() -> Vec<u8> {
    let mut start = format!(
        r#"{{"id":"{}","object":"event","api_version":"2026-06-30","created":1786363197,"livemode":true,"type":"invoice.paid","data":{{"object":{{"id":"in_1","object":"invoice","lines":{{"object":"list","has_more":false,"data":["#,
        String::from_utf8_lossy(ID_SLOT)
    );
    for line in 0..11 {
        let comma = if line == 0 { "" } else { "," };
        start.push_str(&format!(
            r#"{comma}{{"id":"il_{line}","amount":{},"currency":"brl","discounts":[],"period":{{"start":1786363{line:03},"end":1788955{line:03}}},"price":{{"id":"price_{line}","active":true,"recurring":{{"interval":"month","interval_count":1,"meter":null}},"tiers":[{{"up_to":10,"unit_amount":99.5}},{{"up_to":null,"unit_amount":1e2}}]}},"proration":false,"quantity":{line}}}"#,
            1900 + line
        ));
    }
    start.push_str(r#"]},"metadata":{"note":""#);
    padded(&start, r#""},"status":"paid"}},"pending_webhooks":1}"#, NESTED_BYTES)
}

fn batch() -> Vec<u8> {
    let id = String::from_utf8_lossy(ID_SLOT);
    let text = "Oi, j\\u00e1 paguei o PIX \\ud83d\\ude00, pode conferir? ".repeat(8);
    let message = format!(
        r#"{{"from":"5500900000001","id":"{id}","timestamp":"1786363191","type":"text","text":{{"body":"{text}"}}}}"#
    );
    let messages: Vec<&str> = (0..BATCH_ITEMS).map(|_| message.as_str()).collect();
    let body = format!(
        r#"{{"object":"whatsapp_business_account","entry":[{{"id":"2","changes":[{{"value":{{"messaging_product":"whatsapp","metadata":{{"phone_number_id":"100000000000011"}},"messages":[{}]}},"field":"messages"}}]}}]}}"#,
        messages.join(",")
    );
    body.into_bytes()
}

/// `start`, filler, `end`: exactly so many bytes.
fn padded(start: &str, end: &str, bytes: usize) -> Vec<u8> {
    let missing = bytes.checked_sub(start.len() + end.len()).expect("the shape fits its size");
    let filler = b"uma vez so e nunca mais ".iter().copied().cycle().take(missing);
    start.bytes().chain(filler).chain(end.bytes()).collect()
}
