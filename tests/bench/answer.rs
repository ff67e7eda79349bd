//! Just enough of HTTP/1.1 to know where one answer ends, its status, and whether it was a replay.

use memchr::memmem;

/// Longest answer we read before giving up on the connection.
pub(crate) const BYTES_MAX: usize = 1 << 20;

pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) replayed: bool,
    /// Bytes of head and body together.
    pub(crate) length: usize,
}

/// Nobody can say where this answer ends.
#[derive(Debug)]
pub(crate) struct Unreadable;

enum Framing {
    Length(usize),
    Chunked,
}

/// The answer at the start of `bytes`, once all of it is there.
pub(crate) fn parse(bytes: &[u8]) -> Result<Option<Answer>, Unreadable> {
    let Some(head_end) = memmem::find(bytes, b"\r\n\r\n").map(|at| at + 4) else {
        return if bytes.len() > BYTES_MAX { Err(Unreadable) } else { Ok(None) };
    };
    let (head, rest) = bytes.split_at(head_end);
    let status = number(head.get(9..12).ok_or(Unreadable)?, 10)?;
    let mut framing = Framing::Length(0);
    let mut replayed = false;
    for line in head.split(|byte| *byte == b'\n').skip(1) {
        if let Some(value) = header(line, b"content-length:") {
            framing = Framing::Length(number(value, 10)?);
        } else if header(line, b"transfer-encoding:").is_some() {
            framing = Framing::Chunked;
        } else if let Some(value) = header(line, b"idempotency-replayed:") {
            replayed = value == b"true";
        }
    }
    let body = match framing {
        Framing::Length(length) => (rest.len() >= length).then_some(length),
        Framing::Chunked => chunked(rest)?,
    };
    let status = u16::try_from(status).map_err(|_| Unreadable)?;
    Ok(body.map(|body| Answer { status, replayed, length: head_end + body }))
}

/// The line's value if it carries this header (`name` in lower case, with its colon).
fn header<'a>(line: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    let (found, value) = line.split_at_checked(name.len())?;
    found.eq_ignore_ascii_case(name).then(|| value.trim_ascii())
}

/// Length of a complete chunked body.
fn chunked(body: &[u8]) -> Result<Option<usize>, Unreadable> {
    let mut at = 0;
    loop {
        let Some(rest) = body.get(at..) else { return Ok(None) };
        let Some(line) = memmem::find(rest, b"\r\n") else { return Ok(None) };
        let (size, _) = rest.split_at(line);
        let size = number(size.trim_ascii(), 16)?;
        at += line + 2 + size + 2;
        if size == 0 {
            return Ok((body.len() >= at).then_some(at));
        }
    }
}

fn number(digits: &[u8], radix: u32) -> Result<usize, Unreadable> {
    let text = std::str::from_utf8(digits).map_err(|_| Unreadable)?;
    let number = usize::from_str_radix(text, radix).map_err(|_| Unreadable)?;
    if number > BYTES_MAX { Err(Unreadable) } else { Ok(number) }
}
