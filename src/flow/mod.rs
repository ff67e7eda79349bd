//! The life of a request, in order.

pub mod body;
pub mod pass;

pub use crate::upstream::Body;
