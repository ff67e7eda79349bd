//! The closed loop: each connection sends its next request when the last was answered. One epoll loop per thread.

use std::io::{self, Read, Write};
use std::time::{Duration, Instant};

use mio::net::TcpStream;
use mio::{Interest, Poll, Token};
use umavez::clock::monotonic;

use crate::Args;
use crate::answer;
use crate::event::{Event, Events};
use crate::tally::{ERRORS_MAX, Tally};

/// How long answers under way may take after the end.
const DRAIN: Duration = Duration::from_secs(10);

struct Connection {
    stream: TcpStream,
    /// What the socket didn't take yet of the request under way.
    unsent: Vec<u8>,
    received: Vec<u8>,
    waiting: Option<(Event, Instant)>,
}

struct Loop<'a> {
    args: &'a Args,
    poll: Poll,
    connections: Vec<Connection>,
    events: Events,
    tally: Tally,
    out: Vec<u8>,
    sent: u64,
    sent_max: u64,
    start: Instant,
    /// Set once no more requests are to be sent.
    ended: Option<Instant>,
}

pub(crate) fn run(args: &Args) -> io::Result<Tally> {
    let threads = usize::from(args.threads.min(args.connections));
    let start = monotonic();
    std::thread::scope(|scope| {
        let running: Vec<_> = (0..threads)
            .map(|thread| {
                let connections = (usize::from(args.connections) + thread) / threads;
                let requests = args.requests / u64::from(args.threads);
                scope.spawn(move || Loop::new(args, connections, requests, start)?.run())
            })
            .collect();
        let mut whole = Tally::new();
        for thread in running {
            whole.add(&thread.join().map_err(|_| io::Error::other("a load thread panicked"))??);
        }
        Ok(whole)
    })
}

impl<'a> Loop<'a> {
    fn new(args: &'a Args, connections: usize, sent_max: u64, start: Instant) -> io::Result<Self> {
        let poll = Poll::new()?;
        let connections = (0..connections)
            .map(|index| connect(args, &poll, Token(index)))
            .collect::<io::Result<Vec<_>>>()?;
        Ok(Self {
            args,
            poll,
            connections,
            events: Events::new(args),
            tally: Tally::new(),
            out: Vec::with_capacity(8192),
            sent: 0,
            sent_max,
            start,
            ended: None,
        })
    }

    fn run(mut self) -> io::Result<Tally> {
        for index in 0..self.connections.len() {
            self.send(index);
        }
        let mut ready = mio::Events::with_capacity(256);
        let mut scratch = vec![0_u8; 64 << 10];
        loop {
            match self.poll.poll(&mut ready, Some(Duration::from_millis(100))) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                polled => polled?,
            }
            for event in &ready {
                let Token(index) = event.token();
                let written = self.connections.get_mut(index).map_or(Ok(()), Connection::write);
                if written.and_then(|()| self.receive(index, &mut scratch)).is_err() {
                    self.reconnect(index)?;
                }
            }
            let now = monotonic();
            self.end_if_due(now);
            let drained = self.connections.iter().all(|connection| connection.waiting.is_none());
            if self.ended.is_some_and(|ended| drained || now > ended + DRAIN) {
                break;
            }
        }
        let undelivered = self.connections.iter().filter(|connection| connection.waiting.is_some()).count();
        self.tally.errors += u64::try_from(undelivered).unwrap_or(u64::MAX);
        let ended = self.ended.unwrap_or(self.start);
        self.tally.span(ended.saturating_duration_since(self.start + self.args.warm()));
        Ok(self.tally)
    }

    fn end_if_due(&mut self, now: Instant) {
        let due = self.start + self.args.whole();
        if self.ended.is_none() && (now >= due || self.sent >= self.sent_max) {
            self.ended = Some(now.min(due));
        }
    }

    fn send(&mut self, index: usize) {
        let now = monotonic();
        self.end_if_due(now);
        let Some(connection) = self.connections.get_mut(index) else { return };
        if self.ended.is_some() {
            return;
        }
        let event = self.events.write(&mut self.out);
        self.sent += 1;
        connection.waiting = Some((event, now));
        connection.unsent.clone_from(&self.out);
        if connection.write().is_err() {
            // The reading side reports the broken connection.
            self.tally.errors += 1;
        }
    }

    /// Reads what came; an error means that the connection is of no more use.
    fn receive(&mut self, index: usize, scratch: &mut [u8]) -> io::Result<()> {
        let Some(connection) = self.connections.get_mut(index) else { return Ok(()) };
        loop {
            match connection.stream.read(scratch) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(read) => {
                    connection.received.extend_from_slice(scratch.get(..read).unwrap_or_default());
                    // Less than asked for: the socket is empty, and what comes later is another edge.
                    if read < scratch.len() {
                        break;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        let answer = answer::parse(&connection.received).map_err(|_| io::ErrorKind::InvalidData)?;
        let Some(answer) = answer else { return Ok(()) };
        connection.received.drain(..answer.length);
        if let Some((event, since)) = connection.waiting.take() {
            let now = monotonic();
            let counts =
                since >= self.start + self.args.warm() && self.ended.is_none_or(|ended| now <= ended);
            self.tally.answer(event, &answer, now.saturating_duration_since(since), counts);
            self.events.finished(event);
            self.send(index);
        }
        Ok(())
    }

    fn reconnect(&mut self, index: usize) -> io::Result<()> {
        self.tally.errors += 1;
        if self.tally.errors > ERRORS_MAX {
            return Err(io::Error::other("too many broken connections"));
        }
        let fresh = connect(self.args, &self.poll, Token(index))?;
        if let Some(connection) = self.connections.get_mut(index) {
            *connection = fresh;
        }
        self.send(index);
        Ok(())
    }
}

impl Connection {
    /// Writes what the socket takes.
    fn write(&mut self) -> io::Result<()> {
        while !self.unsent.is_empty() {
            match self.stream.write(&self.unsent) {
                Ok(written) if written == self.unsent.len() => self.unsent.clear(),
                Ok(written) => drop(self.unsent.drain(..written)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

fn connect(args: &Args, poll: &Poll, token: Token) -> io::Result<Connection> {
    let stream = std::net::TcpStream::connect(args.address())?;
    stream.set_nodelay(true)?;
    stream.set_nonblocking(true)?;
    let mut stream = TcpStream::from_std(stream);
    poll.registry().register(&mut stream, token, Interest::READABLE | Interest::WRITABLE)?;
    Ok(Connection { stream, unsent: Vec::new(), received: Vec::with_capacity(4096), waiting: None })
}
