//! The open loop: requests are due at a fixed rate whether or not the server keeps up, and a latency counts from
//! the moment its request was due. Each connection has a thread of its own, which takes the next due request.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use umavez::clock::monotonic;

use crate::Args;
use crate::answer::{self, Answer};
use crate::event::Events;
use crate::tally::{ERRORS_MAX, Tally};

/// The kernel wakes a sleeper late by about this much; the rest is spun away.
const OVERSLEEP: Duration = Duration::from_micros(90);
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);

struct Schedule {
    start: Instant,
    warm: Duration,
    whole: Duration,
    every: Duration,
    taken: AtomicU64,
    requests: u64,
}

impl Schedule {
    /// When the next request is due; nothing once the run is over.
    fn take(&self) -> Option<Instant> {
        let number = self.taken.fetch_add(1, Ordering::Relaxed);
        let after = self.every.saturating_mul(u32::try_from(number).ok()?);
        (number < self.requests && after < self.whole).then(|| self.start + after)
    }
}

pub(crate) fn run(args: &Args, rate: f64) -> io::Result<Tally> {
    let schedule = Schedule {
        start: monotonic() + Duration::from_millis(100),
        warm: args.warm(),
        whole: args.whole(),
        every: Duration::from_secs_f64(1.0 / rate.clamp(1.0, 100_000.0)),
        taken: AtomicU64::new(0),
        requests: args.requests,
    };
    let events = Mutex::new(Events::new(args));
    std::thread::scope(|scope| {
        let running: Vec<_> =
            (0..args.connections).map(|_| scope.spawn(|| connection(args, &schedule, &events))).collect();
        let mut whole = Tally::new();
        for thread in running {
            whole.add(&thread.join().map_err(|_| io::Error::other("a load thread panicked"))??);
        }
        whole.span(schedule.whole.saturating_sub(schedule.warm));
        Ok(whole)
    })
}

fn connection(args: &Args, schedule: &Schedule, events: &Mutex<Events>) -> io::Result<Tally> {
    let mut tally = Tally::new();
    let mut stream = connect(args)?;
    let mut out = Vec::with_capacity(8192);
    let mut received = Vec::with_capacity(8192);
    while let Some(due) = schedule.take() {
        wait_until(due);
        let event = events.lock().unwrap_or_else(PoisonError::into_inner).write(&mut out);
        match exchange(&mut stream, &out, &mut received) {
            Ok(answer) => {
                let counts = due >= schedule.start + schedule.warm;
                tally.answer(event, &answer, monotonic().saturating_duration_since(due), counts);
                events.lock().unwrap_or_else(PoisonError::into_inner).finished(event);
            }
            Err(_) if tally.errors < ERRORS_MAX => {
                tally.errors += 1;
                stream = connect(args)?;
            }
            Err(error) => return Err(error),
        }
    }
    Ok(tally)
}

fn connect(args: &Args) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(args.address())?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
    Ok(stream)
}

fn exchange(stream: &mut TcpStream, request: &[u8], received: &mut Vec<u8>) -> io::Result<Answer> {
    stream.write_all(request)?;
    received.clear();
    let mut chunk = [0_u8; 8192];
    loop {
        let read = stream.read(&mut chunk)?;
        if read == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        received.extend_from_slice(chunk.get(..read).unwrap_or_default());
        if let Some(answer) = answer::parse(received).map_err(|_| io::ErrorKind::InvalidData)? {
            return Ok(answer);
        }
    }
}

fn wait_until(due: Instant) {
    let left = due.saturating_duration_since(monotonic());
    if let Some(nap) = left.checked_sub(OVERSLEEP) {
        std::thread::sleep(nap);
    }
    while monotonic() < due {
        std::hint::spin_loop();
    }
}
