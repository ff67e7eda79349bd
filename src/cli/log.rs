//! Logs to stderr, without making the threads that serve wait for it: a line goes into a bounded queue and one
//! thread writes. A full queue drops lines and says how many.

use std::fmt;
use std::io::{IsTerminal as _, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, channel, sync_channel};
use std::time::Duration;

use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::{Context, SubscriberExt as _};
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, Layer};
use umavez::clock::{Clock, monotonic};
use umavez::config::{Log, LogFilter, LogFormat};
use umavez::upstream::told;

use super::Failure;

/// Stands before the configuration's level.
const VARIABLE: &str = "UMAVEZ_LOG";
/// Lines waiting to be written; more are dropped.
const WAITING_LINES_MAX: usize = 8192;
/// Room for the line of a request.
const LINE_BYTES_USUAL: usize = 320;
/// Bytes written at once.
const WRITE_BYTES_MAX: usize = 64 * 1024;
/// How long the writer lets lines gather: it is woken once for many, not by each.
const GATHER: Duration = Duration::from_millis(2);
/// How long an end waits for whoever reads the log. Past it the lines are lost: the process must end.
const FLUSH_MAX: Duration = Duration::from_secs(1);
/// How often a full queue is tried then.
const FLUSH_TRY: Duration = Duration::from_millis(10);

/// Starts logging. What the result does when dropped: writes what is waiting.
pub(super) fn start(log: &Log) -> Result<Flush, Failure> {
    let (filter, whence) = match std::env::var(VARIABLE) {
        Ok(filter) if !filter.trim().is_empty() => (filter, VARIABLE),
        Ok(_) | Err(_) => (log.level.clone(), "log.level"),
    };
    let told = filter.clone();
    let filter = LogFilter::parse(&filter).map_err(|fault| Failure::Usage(format!("{whence}: {fault}")))?;
    let filter = EnvFilter::builder().parse(&filter.text).map_err(|error| Failure::Other(error.into()))?;
    // What fred warns of, a lost connection, our own lines tell, with what follows from it.
    let chatty = ["debug", "trace", "fred"].iter().any(|word| told.to_lowercase().contains(word));
    let filter = if chatty { filter } else { filter.add_directive("fred=error".parse().expect("it is one")) };
    let text = match log.format {
        LogFormat::Text => true,
        LogFormat::Json => false,
        LogFormat::Auto => std::io::stderr().is_terminal(),
    };
    let (queue, flush) = Queue::start().map_err(|error| Failure::Other(error.into()))?;
    let layer = if text {
        let colours = std::io::stderr().is_terminal();
        tracing_subscriber::fmt::layer().with_writer(queue).with_ansi(colours).with_target(false).boxed()
    } else {
        JsonLines { queue }.boxed()
    };
    // The filter stands before everything, not on the layer: with one layer it means the same and costs less.
    tracing_subscriber::registry()
        .with(filter)
        .with(layer)
        .try_init()
        .map_err(|error| Failure::Other(error.into()))?;
    Ok(flush)
}

enum Message {
    Line(Vec<u8>),
    Stop,
}

/// One JSON object a line. There is one line per request: this does a quarter of the work of the general formatter.
struct JsonLines {
    queue: Queue,
}

impl<S: Subscriber> Layer<S> for JsonLines {
    fn on_event(&self, event: &Event<'_>, _context: Context<'_, S>) {
        let mut line = Vec::with_capacity(LINE_BYTES_USUAL);
        line.extend_from_slice(b"{\"timestamp\":\"");
        line.extend_from_slice(Clock::System.now().rfc3339().as_bytes());
        line.extend_from_slice(b"\",\"level\":\"");
        line.extend_from_slice(event.metadata().level().as_str().as_bytes());
        line.push(b'"');
        event.record(&mut JsonFields { line: &mut line });
        line.extend_from_slice(b"}\n");
        self.queue.put(line);
    }
}

/// Appends an event's fields to its line.
struct JsonFields<'a> {
    line: &'a mut Vec<u8>,
}

impl JsonFields<'_> {
    fn name(&mut self, field: &Field) {
        self.line.extend_from_slice(b",\"");
        self.line.extend_from_slice(field.name().as_bytes()); // an identifier: nothing in it to escape
        self.line.extend_from_slice(b"\":");
    }

    fn plain(&mut self, field: &Field, value: fmt::Arguments<'_>) {
        self.name(field);
        self.line.write_fmt(value).expect("a Vec takes any bytes");
    }
}

impl Visit for JsonFields<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.record_str(field, &format!("{value:?}"));
    }

    /// With its causes: the last one is what a reader needs most.
    fn record_error(&mut self, field: &Field, value: &(dyn std::error::Error + 'static)) {
        self.record_str(field, &told(value));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.name(field);
        if value.bytes().all(|byte| byte >= b' ' && byte != b'"' && byte != b'\\') {
            self.line.push(b'"');
            self.line.extend_from_slice(value.as_bytes());
            self.line.push(b'"');
        } else {
            serde_json::to_writer(&mut *self.line, value).expect("a Vec takes any bytes");
        }
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.plain(field, format_args!("{value}"));
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.plain(field, format_args!("{value}"));
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.plain(field, format_args!("{value}"));
    }
}

/// Where lines go. Every line is one `write`.
#[derive(Clone)]
struct Queue {
    lines: SyncSender<Message>,
    dropped: Arc<AtomicU64>,
}

/// Writes what is waiting when it is dropped, as far as that is read within [`FLUSH_MAX`].
pub(super) struct Flush {
    lines: SyncSender<Message>,
    /// Ends with the writer.
    written: Receiver<()>,
}

impl Queue {
    fn start() -> std::io::Result<(Self, Flush)> {
        let (lines, waiting) = sync_channel(WAITING_LINES_MAX);
        let dropped = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&dropped);
        let (ended, written) = channel::<()>();
        std::thread::Builder::new().name("log".to_owned()).spawn(move || {
            write_lines(&waiting, &counted, &mut std::io::stderr());
            drop(ended);
        })?;
        let flush = Flush { lines: lines.clone(), written };
        Ok((Self { lines, dropped }, flush))
    }

    fn put(&self, line: Vec<u8>) {
        if let Err(TrySendError::Full(_)) = self.lines.try_send(Message::Line(line)) {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Drop for Flush {
    fn drop(&mut self) {
        // The writer may be stuck behind a pipe that nobody reads.
        let due = monotonic() + FLUSH_MAX;
        while let Err(TrySendError::Full(_)) = self.lines.try_send(Message::Stop) {
            if monotonic() >= due {
                return;
            }
            std::thread::sleep(FLUSH_TRY);
        }
        let left = due.saturating_duration_since(monotonic());
        self.written.recv_timeout(left).ok(); // an error either way: it has ended, or it is stuck
    }
}

fn write_lines(waiting: &Receiver<Message>, dropped: &AtomicU64, out: &mut impl Write) {
    let mut buffer: Vec<u8> = Vec::with_capacity(WRITE_BYTES_MAX);
    let mut open = true;
    while open {
        match waiting.recv() {
            Ok(Message::Line(line)) => buffer.extend_from_slice(&line),
            Ok(Message::Stop) | Err(_) => open = false,
        }
        if open {
            std::thread::sleep(GATHER);
        }
        while buffer.len() < WRITE_BYTES_MAX {
            match waiting.try_recv() {
                Ok(Message::Line(line)) => buffer.extend_from_slice(&line),
                Ok(Message::Stop) => open = false,
                Err(_) => break,
            }
        }
        let lost = dropped.swap(0, Ordering::Relaxed);
        if lost > 0 {
            buffer.extend_from_slice(
                format!("{{\"level\":\"WARN\",\"message\":\"log lines dropped\",\"lines\":{lost}}}\n")
                    .as_bytes(),
            );
        }
        // Nobody is left to tell if stderr itself is gone.
        let _written = out.write_all(&buffer).and_then(|()| out.flush());
        buffer.clear();
    }
}

impl<'a> MakeWriter<'a> for Queue {
    type Writer = &'a Queue;

    fn make_writer(&'a self) -> Self::Writer {
        self
    }
}

impl Write for &Queue {
    fn write(&mut self, line: &[u8]) -> std::io::Result<usize> {
        self.put(line.to_vec());
        Ok(line.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_queue_drops_and_says_how_many() {
        let (lines, waiting) = sync_channel(2);
        let dropped = Arc::new(AtomicU64::new(0));
        let queue = Queue { lines: lines.clone(), dropped: Arc::clone(&dropped) };
        for number in 0..5 {
            writeln!(&queue, "{number}").unwrap();
        }
        drop((queue, lines));
        let mut written = Vec::new();
        write_lines(&waiting, &dropped, &mut written);
        let written = String::from_utf8(written).unwrap();
        assert!(written.starts_with("0\n"), "{written}");
        assert!(written.contains("\"lines\":"), "{written}");
    }
}
