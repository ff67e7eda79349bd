//! The duties of a reverse proxy: bytes, headers, framing, limits, and what matches no route.

mod app;
mod bytes;
mod framing;
mod streams;
