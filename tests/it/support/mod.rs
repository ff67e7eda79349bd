//! What the stories stand on: real servers, senders and upstreams, started for one test and killable.

pub(crate) mod redis;
