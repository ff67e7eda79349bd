//! The life of a request, in order.

pub mod route;
