//! W3C Trace Context: reading and writing `traceparent`, and judging `tracestate`. Pure.

use http::{HeaderMap, HeaderName, HeaderValue};

pub(super) const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
pub(super) const TRACESTATE: HeaderName = HeaderName::from_static("tracestate");

/// The flag of a trace whose spans are recorded.
const SAMPLED: u8 = 1;
/// The flags that are passed on: sampled, and that the trace's id is random (level 2).
const KNOWN: u8 = 3;

/// The longest `tracestate` that is passed on, and its most members.
const STATE_BYTES_MAX: usize = 512;
const STATE_MEMBERS_MAX: usize = 32;

/// A span in a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Context {
    pub(super) trace: u128,
    pub(super) span: u64,
    pub(super) flags: u8,
}

impl Context {
    /// The first span of a new trace.
    pub(super) fn begin(trace: u128, sampled: bool) -> Self {
        Self { trace, span: span_id(), flags: u8::from(sampled) }
    }

    /// A new span in the same trace.
    pub(super) fn child(self) -> Self {
        Self { span: span_id(), ..self }
    }

    pub(super) fn is_sampled(self) -> bool {
        self.flags & SAMPLED != 0
    }

    /// The one that headers name; `None` where they name none, or not as they should.
    pub(super) fn of(headers: &HeaderMap) -> Option<Self> {
        let mut values = headers.get_all(TRACEPARENT).iter();
        match (values.next(), values.next()) {
            (Some(value), None) => Self::parse(value.to_str().ok()?),
            (Some(_) | None, _) => None,
        }
    }

    fn parse(text: &str) -> Option<Self> {
        let mut fields = text.split('-');
        let version = hex(fields.next()?, 2)?;
        let (trace, span) = (hex(fields.next()?, 32)?, hex(fields.next()?, 16)?);
        let flags = hex(fields.next()?, 2)?;
        // A later version may say more, which we don't understand and don't pass on.
        let readable = version != 0xff && (version != 0 || fields.next().is_none());
        if !readable || trace == 0 || span == 0 {
            return None;
        }
        Some(Self { trace, span: u64::try_from(span).ok()?, flags: u8::try_from(flags).ok()? & KNOWN })
    }

    pub(super) fn header(self) -> HeaderValue {
        let Self { trace, span, flags } = self;
        HeaderValue::try_from(format!("00-{trace:032x}-{span:016x}-{flags:02x}")).expect("digits and dashes")
    }
}

/// A trace's id, never zero.
pub(super) fn trace_id() -> u128 {
    rand::random::<u128>().max(1)
}

/// A span's id, never zero.
pub(super) fn span_id() -> u64 {
    rand::random::<u64>().max(1)
}

/// So many hex digits, in lower case as the specification has it.
fn hex(text: &str, digits: usize) -> Option<u128> {
    let lower = text.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte));
    (text.len() == digits && lower).then(|| u128::from_str_radix(text, 16).ok()).flatten()
}

/// What the vendors on the way say, in one list; empty where there is nothing, or nothing that is written as it should.
pub(super) fn state_of(headers: &HeaderMap) -> String {
    let values = headers.get_all(TRACESTATE).iter().map(|value| value.to_str());
    let Ok(values) = values.collect::<Result<Vec<_>, _>>() else { return String::new() };
    let state = values.join(",");
    let members: Vec<&str> = state.split(',').map(str::trim).filter(|member| !member.is_empty()).collect();
    let fits = state.len() <= STATE_BYTES_MAX && members.len() <= STATE_MEMBERS_MAX;
    if fits && members.iter().all(|member| is_member(member)) { state } else { String::new() }
}

fn is_member(member: &str) -> bool {
    let Some((key, value)) = member.split_once('=') else { return false };
    let first = key.bytes().next().is_some_and(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
    let of_key = |byte: u8| {
        byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'_' | b'-' | b'*' | b'/' | b'@')
    };
    let of_value = |byte: u8| (b' '..=b'~').contains(&byte) && byte != b'=';
    first && key.len() <= 256 && key.bytes().all(of_key) && value.len() <= 256 && value.bytes().all(of_value)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";

    fn headers(lines: &[(&'static str, &str)]) -> HeaderMap {
        lines.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect()
    }

    #[test]
    fn a_parent_is_read_as_the_specification_has_it() {
        let good = format!("00-{TRACE}-00f067aa0ba902b7-01");
        let read = Context::of(&headers(&[("traceparent", &good)])).unwrap();
        assert_eq!(read.header(), good.as_str());
        assert!(read.is_sampled());
        for (text, flags) in [
            (format!("00-{TRACE}-00f067aa0ba902b7-00"), Some(0)),
            // Flags that nobody knows are not passed on.
            (format!("00-{TRACE}-00f067aa0ba902b7-ff"), Some(3)),
            // A version to come, with and without more.
            (format!("cc-{TRACE}-00f067aa0ba902b7-01"), Some(1)),
            (format!("cc-{TRACE}-00f067aa0ba902b7-01-what-the-future"), Some(1)),
            (format!("cc-{TRACE}-00f067aa0ba902b7-01.what"), None),
            (format!("00-{TRACE}-00f067aa0ba902b7-01-more"), None),
            (format!("00-{TRACE}-00f067aa0ba902b7-01-"), None),
            (format!("ff-{TRACE}-00f067aa0ba902b7-01"), None),
            (format!("00-{}-00f067aa0ba902b7-01", TRACE.to_uppercase()), None),
            (format!("00-{}-00f067aa0ba902b7-01", "0".repeat(32)), None),
            (format!("00-{TRACE}-0000000000000000-01"), None),
            (format!("00-{TRACE}-00f067aa0ba902b-01"), None),
            (format!("00-{TRACE}-00f067aa0ba902b7-1"), None),
            (format!("00-{TRACE}-+0f067aa0ba902b7-01"), None),
            (format!("00-{TRACE}-00f067aa0ba902b7"), None),
            (String::new(), None),
        ] {
            let read = Context::of(&headers(&[("traceparent", &text)]));
            assert_eq!(read.map(|read| read.flags), flags, "{text}");
        }
        assert_eq!(Context::of(&headers(&[("traceparent", &good), ("traceparent", &good)])), None);
        assert_eq!(Context::of(&HeaderMap::new()), None);
    }

    #[test]
    fn a_state_is_taken_whole_or_not_at_all() {
        let longest = format!("a={}", "x".repeat(256));
        let many = (0..33).map(|n| format!("k{n}=v")).collect::<Vec<_>>().join(",");
        for (lines, taken) in [
            (vec!["rojo=00f067aa0ba902b7,congo=t61rcWkgMzE"], true),
            (vec!["rojo=1", "congo=2"], true),
            (vec!["fw529a3039@dt=FfAAA, tenant@vendor=v 1"], true),
            (vec![&*longest], true),
            (vec!["Rojo=1"], false),
            (vec!["rojo"], false),
            (vec!["rojo=1=2"], false),
            (vec!["rojo=1", "=2"], false),
            (vec![&*many], false),
            (vec![&*longest, &*longest], false),
        ] {
            let lines: Vec<_> = lines.into_iter().map(|line| ("tracestate", line)).collect();
            let state = state_of(&headers(&lines));
            assert_eq!(!state.is_empty(), taken, "{lines:?}");
        }
        assert_eq!(state_of(&headers(&[("tracestate", "a=1"), ("tracestate", "b=2")])), "a=1,b=2");
    }
}
