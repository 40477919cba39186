//! Ports for servers that are started by number.

use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};

/// The ports that servers get. They are below those that Linux gives to outgoing connections (from 32768 on): a connection of a program that is
/// still running could take one of those before its server starts.
const SERVER_PORTS: Range<u16> = 12_000..32_000;

/// A free port on loopback, another one for each call: for a server, in a test, that takes a port and no listener.
///
/// # Errors
///
/// When none of the ports from 12000 to 31999 is free.
pub fn free_port() -> io::Result<u16> {
    static N_TRIED: AtomicU32 = AtomicU32::new(0);
    // Processes that run at the same time start at different ports.
    let first = std::process::id().wrapping_mul(97);
    for _ in SERVER_PORTS {
        let nth = first.wrapping_add(N_TRIED.fetch_add(1, Ordering::Relaxed));
        // The remainder fits: it is below the number of ports.
        let port = SERVER_PORTS.start + (nth % SERVER_PORTS.len() as u32) as u16;
        if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return Ok(port);
        }
    }
    Err(io::Error::new(io::ErrorKind::AddrInUse, format!("no port of {SERVER_PORTS:?} is free")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_below_those_of_connections_and_differ() {
        let [one, other] = [(); 2].map(|()| free_port().unwrap());
        assert!(SERVER_PORTS.contains(&one) && SERVER_PORTS.contains(&other));
        assert_ne!(one, other);
    }
}
