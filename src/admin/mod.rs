//! /metrics, /live, /ready and the event API.
