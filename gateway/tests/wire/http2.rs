//! HTTP/2: many tunnels on one connection, none of which stops another.

mod ends;
mod forward;
mod hostile;
mod refusals;
mod resets;
mod tunnels;
