//! What an attempt to reach the app came to. Only three things prove that the app has not processed a request: no
//! connection, a connection that handed the request back unwritten, and an app that says so in HTTP/2. All else may
//! have been processed.

use std::time::Duration;

use bytes::Bytes;
use http::Response;

use super::body::BodyFault;

/// What forwarding a request came to.
#[derive(Debug)]
pub enum Outcome {
    /// A complete final answer.
    Answered(Response<Bytes>),
    /// Provably not processed: the connection was refused or never made, or the app refused the stream.
    NeverSent(UpstreamError),
    /// The request may have been processed: it timed out, or the connection broke after it was (partly) sent,
    /// or the answer broke off.
    Unknown(UpstreamError),
}

/// The cause of a failure, as the library that met it tells it.
pub type Cause = Box<dyn std::error::Error + Send + Sync>;

/// Why there is no complete answer.
#[derive(Debug, thiserror::Error)]
pub enum UpstreamError {
    #[error("the app did not accept a connection")]
    Connect(#[source] Cause),
    #[error("the app gave no complete answer within {0:?}")]
    Timeout(Duration),
    #[error("the connection to the app broke")]
    Broken(#[source] Cause),
    #[error("the app's answer is longer than {0} bytes")]
    TooLong(usize),
    #[error("the app switched protocols unasked")]
    Switched,
}

impl UpstreamError {
    /// Whether it was the sender's body that ended early: the app is not to blame.
    pub fn is_of_the_sender(&self) -> Option<&BodyFault> {
        use std::error::Error as _;
        let mut source = self.source();
        while let Some(cause) = source {
            if let Some(fault) = cause.downcast_ref() {
                return Some(fault);
            }
            source = cause.source();
        }
        None
    }

    /// With its causes, in one line: a log's reader needs the last one most.
    pub fn told(&self) -> String {
        told(self)
    }
}

/// An error and its causes in one line, each once: for logs.
pub fn told(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.ends_with(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        source = cause.source();
    }
    text
}
