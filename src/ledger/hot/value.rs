//! What the hot store keeps under a key, as text that a person reads in `redis-cli`. Pure: bytes in, bytes out.
//!
//! A mark: `processing - <fence>`, or `processing w <fence>` where a copy on another node waits for its end. In place of
//! `-` and `w`, `x` and `y` where the durable store knows nothing of the claim: it was away.
//! An end: `done <status> <fingerprint> <at> <body bytes|->`, lines of `name: value`, an empty line, the body. Where the
//! receipt is too long, `durable` in place of the bytes and no body, which stays in the durable store; or
//! `done - <fingerprint>` alone where not even the headers fit.
//! `forgotten`, for a short while: a person changed the event, and ends that are still on their way must not land.
//! Anything else is nothing we wrote, and never reads as done.

use std::io::Write as _;
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use http::{HeaderName, HeaderValue};

use super::{Done, Long};
use crate::clock::UnixMillis;
use crate::ledger::claim::{EventKey, Fence, Fingerprint, READABLE_TEXT_MAX, Receipt};

/// Longest receipt that the hot store keeps, bytes; of longer ones the durable store has the body.
pub(super) const RECEIPT_BYTES_MAX: usize = 4096;

/// Room for the line before a receipt's headers.
const FIRST_LINE_BYTES: usize = 64;

const MARK: &[u8] = b"processing ";
const DONE: &[u8] = b"done ";
/// Where the body is, in place of its length.
const ELSEWHERE: &str = "durable";
/// What a person's change leaves.
pub(super) const FORGOTTEN: &[u8] = b"forgotten";
/// How long what is forgotten is kept from coming back: longer than any call to Redis lasts.
pub(super) const FORGOTTEN_TTL: Duration = Duration::from_secs(30);

/// What a value says.
#[derive(Debug, PartialEq)]
pub(super) enum Value {
    Mark {
        fence: Fence,
        /// A copy on another node waits for this mark's end.
        watched: bool,
        /// The claim is nowhere else.
        exposed: bool,
    },
    Done(Done),
    Long(Long),
    Forgotten,
    /// Not written by us, or cut off: says nothing of the event.
    Unreadable,
}

impl Value {
    pub(super) fn parse(bytes: &Bytes) -> Self {
        let value = if let Some(rest) = bytes.strip_prefix(MARK) {
            parse_mark(rest)
        } else if bytes == FORGOTTEN {
            Some(Self::Forgotten)
        } else {
            bytes.strip_prefix(DONE).and_then(|rest| parse_done(bytes, rest))
        };
        value.unwrap_or(Self::Unreadable)
    }
}

/// The name of a key in Redis: its text where a person can read it, else its digest.
pub(super) fn name(prefix: &str, key: &EventKey) -> Bytes {
    let text = key.text();
    let mut name = BytesMut::with_capacity(prefix.len() + 1 + text.len().min(READABLE_TEXT_MAX));
    name.put_slice(prefix.as_bytes());
    if text.len() <= READABLE_TEXT_MAX {
        name.put_u8(b':');
        name.put_slice(text.as_bytes());
    } else {
        name.put_slice(b":#");
        name.put_slice(key.digest().to_string().as_bytes());
    }
    name.freeze()
}

/// A mark, not yet watched.
pub(super) fn mark(fence: Fence) -> String {
    format!("processing - {}", fence.0)
}

/// An end, without its body where that is too long.
pub(super) fn done(done: &Done) -> Vec<u8> {
    let Done { fingerprint, receipt } = done;
    let headers = receipt.headers.iter().map(|(name, value)| name.as_str().len() + value.len() + 3);
    let headers_bytes = headers.sum::<usize>();
    let whole_bytes = headers_bytes + receipt.body.as_ref().map_or(0, Bytes::len);
    if headers_bytes > RECEIPT_BYTES_MAX {
        return format!("done - {fingerprint}").into_bytes();
    }
    let body = receipt.body.as_ref().filter(|_| whole_bytes <= RECEIPT_BYTES_MAX);
    let room = headers_bytes + body.map_or(0, Bytes::len);
    let mut bytes = Vec::with_capacity(FIRST_LINE_BYTES + room + 1);
    write!(bytes, "done {} {fingerprint} {} ", receipt.status, receipt.at.0)
        .and_then(|()| match (body, &receipt.body) {
            (Some(body), _) => writeln!(bytes, "{}", body.len()),
            (None, Some(_)) => writeln!(bytes, "{ELSEWHERE}"),
            (None, None) => writeln!(bytes, "-"),
        })
        .expect("a vector takes any text");
    for (name, value) in &receipt.headers {
        bytes.extend_from_slice(name.as_str().as_bytes());
        bytes.extend_from_slice(b": ");
        bytes.extend_from_slice(value.as_bytes());
        bytes.push(b'\n');
    }
    bytes.push(b'\n');
    bytes.extend_from_slice(body.map_or(&[][..], |body| body));
    bytes
}

fn parse_mark(rest: &[u8]) -> Option<Value> {
    let (watched, exposed, fence) = match rest {
        [b'-', b' ', fence @ ..] => (false, false, fence),
        [b'w', b' ', fence @ ..] => (true, false, fence),
        [b'x', b' ', fence @ ..] => (false, true, fence),
        [b'y', b' ', fence @ ..] => (true, true, fence),
        _ => return None,
    };
    let fence = std::str::from_utf8(fence).ok()?.parse().ok()?;
    Some(Value::Mark { fence: Fence(fence), watched, exposed })
}

fn parse_done(whole: &Bytes, rest: &[u8]) -> Option<Value> {
    if let Some(fingerprint) = rest.strip_prefix(b"- ") {
        let fingerprint = parse_fingerprint(std::str::from_utf8(fingerprint).ok()?)?;
        return Some(Value::Long(Long { fingerprint, receipt: None }));
    }
    let (first, mut rest) = split_line(rest)?;
    let mut words = std::str::from_utf8(first).ok()?.split(' ');
    let status = words.next()?.parse().ok().filter(|status| (100..1000).contains(status))?;
    let fingerprint = parse_fingerprint(words.next()?)?;
    let at = UnixMillis(words.next()?.parse().ok()?);
    let (length, elsewhere) = match words.next()? {
        "-" => (None, false),
        ELSEWHERE => (None, true),
        digits => (Some(digits.parse::<usize>().ok()?), false),
    };
    if words.next().is_some() {
        return None;
    }
    let mut headers = Vec::new();
    loop {
        let (line, after) = split_line(rest)?;
        rest = after;
        if line.is_empty() {
            break;
        }
        let colon = line.iter().position(|byte| *byte == b':')?;
        let (name, value) = line.split_at_checked(colon)?;
        let value = value.strip_prefix(b": ")?;
        let value = HeaderValue::from_maybe_shared(whole.slice_ref(value)).ok()?;
        headers.push((HeaderName::from_bytes(name).ok()?, value));
    }
    if rest.len() != length.unwrap_or(0) {
        return None;
    }
    // Values and body share the text's block: a copy of an event costs no copy of its receipt.
    let body = length.map(|_| whole.slice_ref(rest));
    let receipt = Receipt { status, headers, body, at };
    Some(match elsewhere {
        true => Value::Long(Long { fingerprint, receipt: Some(receipt) }),
        false => Value::Done(Done { fingerprint, receipt }),
    })
}

fn parse_fingerprint(hex: &str) -> Option<Fingerprint> {
    let digits = hex.len() == 16 && hex.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    let bits = digits.then(|| u64::from_str_radix(hex, 16).ok())??;
    Some(Fingerprint(bits.cast_signed()))
}

fn split_line(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = memchr::memchr(b'\n', bytes)?;
    let (line, rest) = bytes.split_at_checked(end)?;
    Some((line, rest.get(1..)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(headers: &[(&str, &[u8])], body: Option<&[u8]>) -> Done {
        let headers = headers
            .iter()
            .map(|(name, value)| (name.parse().unwrap(), HeaderValue::from_bytes(value).unwrap()))
            .collect();
        let body = body.map(Bytes::copy_from_slice);
        let receipt = Receipt { status: 201, headers, body, at: UnixMillis(1_764_536_400_123) };
        Done { fingerprint: Fingerprint(-3), receipt }
    }

    #[test]
    fn what_is_written_reads_back() {
        let ends = [
            sample(&[], None),
            sample(&[], Some(b"")),
            sample(&[("content-type", b"text/plain; charset=utf-8")], Some(b"made\n\n\x00\xff")),
            sample(&[("location", b"/o/5"), ("x-odd", b"\xe9\t: "), ("x-odd", b"")], Some(b"<ok/>")),
            Done { fingerprint: Fingerprint(i64::MIN), ..sample(&[], None) },
        ];
        for end in ends {
            assert_eq!(Value::parse(&done(&end).into()), Value::Done(end));
        }
        for (text, watched, exposed) in
            [("- 7", false, false), ("w 7", true, false), ("x 7", false, true), ("y 7", true, true)]
        {
            let bytes = Bytes::from(format!("processing {text}"));
            assert_eq!(Value::parse(&bytes), Value::Mark { fence: Fence(7), watched, exposed });
        }
        let unwatched = Value::Mark { fence: Fence(7), watched: false, exposed: false };
        assert_eq!(Value::parse(&mark(Fence(7)).into()), unwatched);
        assert_eq!(Value::parse(&Bytes::from_static(FORGOTTEN)), Value::Forgotten);
        assert_eq!(MARK.len(), 11, "where the watch script sets the watched byte");
    }

    #[test]
    fn of_a_long_receipt_the_body_stays_in_the_durable_store() {
        // Status and headers stayed there with it: without the durable store a copy was told neither.
        let long = sample(&[("location", b"/o/5")], Some(&[b'x'; RECEIPT_BYTES_MAX]));
        let kept = Receipt { body: None, ..long.receipt.clone() };
        let known = Long { fingerprint: long.fingerprint, receipt: Some(kept) };
        assert_eq!(Value::parse(&done(&long).into()), Value::Long(known));
        let headers = sample(&[("x-long", &[b'x'; RECEIPT_BYTES_MAX])], None);
        let known = Long { fingerprint: headers.fingerprint, receipt: None };
        assert_eq!(Value::parse(&done(&headers).into()), Value::Long(known));
        let fits = sample(&[], Some(&[b'x'; RECEIPT_BYTES_MAX]));
        assert_eq!(Value::parse(&done(&fits).into()), Value::Done(fits));
    }

    #[test]
    fn what_we_did_not_write_says_nothing() {
        let whole = Bytes::from(done(&sample(&[("content-type", b"text/plain")], Some(b"made"))));
        for end in 0..whole.len() {
            assert_eq!(Value::parse(&whole.slice(..end)), Value::Unreadable, "cut after {end}");
        }
        let strangers: [&[u8]; 12] = [
            b"",
            b"1",
            b"done",
            b"done ",
            b"done - 12",
            b"done - 000000000000000g",
            b"done 99 0000000000000001 5 -\n\n",
            b"done 200 0000000000000001 5 - 6\n\n",
            b"done 200 0000000000000001 5 0\nbad name: x\n\n",
            b"processing z 5",
            b"processing - ",
            b"processing - 99999999999999999999",
        ];
        for bytes in strangers {
            assert_eq!(Value::parse(&Bytes::copy_from_slice(bytes)), Value::Unreadable, "{bytes:?}");
        }
    }

    #[test]
    fn a_long_text_is_named_by_its_digest() {
        let short = EventKey::from_text("hotmart:".to_owned() + &"x".repeat(120));
        assert_eq!(name("dedup", &short), format!("dedup:{}", short.text()));
        let long = EventKey::from_text("hotmart:".to_owned() + &"x".repeat(121));
        assert_eq!(name("dedup", &long), format!("dedup:#{}", long.digest()));
    }
}
