//! A socket that reads what arrives within a moment together.
//!
//! An API server sends each watch event as a TLS record of its own, at once. Read at once, each costs system calls and the wake-ups of two
//! tasks, which is more than decoding a pod. So while much arrives, the socket is read a few times per millisecond, without being told when
//! there is something to read; a network interface that coalesces interrupts does the same.

use std::io::{self, IoSlice, Read, Write};
use std::net::Shutdown;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep};

/// Bytes that are read at once, at most.
const BUFFER_LEN: usize = 128 << 10;
/// Reads per [`PERIOD`], at most. More than one, so that the server can send more while the first part is decoded.
const N_READS_MAX: u32 = 4;
/// How long data waits, at most, but for the resolution of timers, which is a millisecond, too.
const PERIOD: Duration = Duration::from_millis(1);

/// A TCP connection that is read in large parts, and less often while much arrives. One task uses it.
pub(crate) struct BatchedReads {
    socket: Socket,
    buffer: Box<[u8]>,
    /// What of the buffer has not been returned yet.
    start: usize,
    end: usize,
    /// When the current period ends, and the number of reads in it.
    period_end: Instant,
    n_reads: u32,
    timer: Pin<Box<Sleep>>,
}

enum Socket {
    /// Registered with the runtime: read when something has arrived.
    OnArrival(TcpStream),
    /// Not registered: read at the beginning of each period, until nothing has arrived in one.
    Periodic(std::net::TcpStream),
    /// It could not be registered again.
    Lost,
}

impl Socket {
    fn make_periodic(&mut self) -> io::Result<()> {
        *self = match std::mem::replace(self, Socket::Lost) {
            Socket::OnArrival(stream) => Socket::Periodic(stream.into_std()?),
            other => other,
        };
        Ok(())
    }

    /// Reads or writes at once, if it is not registered and ready.
    fn try_now(
        &mut self,
        work: impl FnOnce(&mut std::net::TcpStream) -> io::Result<usize>,
    ) -> Option<io::Result<usize>> {
        let Socket::Periodic(stream) = self else { return None };
        let done = work(stream);
        let is_ready = !done.as_ref().is_err_and(is_not_ready);
        is_ready.then_some(done)
    }

    /// Registers it with the runtime, if it is not.
    fn registered(&mut self) -> io::Result<Pin<&mut TcpStream>> {
        *self = match std::mem::replace(self, Socket::Lost) {
            Socket::Periodic(stream) => Socket::OnArrival(TcpStream::from_std(stream)?),
            other => other,
        };
        match self {
            Socket::OnArrival(stream) => Ok(Pin::new(stream)),
            _ => Err(io::ErrorKind::NotConnected.into()),
        }
    }
}

fn is_not_ready(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

impl BatchedReads {
    /// Reads from a connection.
    pub fn new(stream: TcpStream) -> BatchedReads {
        BatchedReads {
            socket: Socket::OnArrival(stream),
            buffer: vec![0; BUFFER_LEN].into_boxed_slice(),
            start: 0,
            end: 0,
            period_end: Instant::now() + PERIOD,
            n_reads: 0,
            timer: Box::pin(tokio::time::sleep(PERIOD)),
        }
    }

    /// Reads into the empty buffer; it stays empty at the end of the stream.
    fn poll_fill(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while matches!(self.socket, Socket::Periodic(_)) {
            if self.n_reads >= N_READS_MAX {
                ready!(self.poll_period_end(context));
                continue;
            }
            if let Some(read) = self.socket.try_now(|stream| stream.read(&mut self.buffer)) {
                (self.start, self.end) = (0, read?);
                self.n_reads += 1;
                return Poll::Ready(Ok(()));
            }
            if self.n_reads == 0 {
                break;
            }
            self.n_reads = N_READS_MAX;
        }
        let mut filled = ReadBuf::new(&mut self.buffer);
        ready!(self.socket.registered()?.poll_read(context, &mut filled))?;
        (self.start, self.end) = (0, filled.filled().len());
        self.start_period_if_due();
        self.n_reads += 1;
        if self.n_reads > N_READS_MAX {
            self.socket.make_periodic()?;
            // The task may be waiting until it can write, of which an unregistered socket does not tell it.
            context.waker().wake_by_ref();
        }
        Poll::Ready(Ok(()))
    }

    /// Waits for the end of the period, and starts the next one.
    fn poll_period_end(&mut self, context: &mut Context<'_>) -> Poll<()> {
        while !self.start_period_if_due() {
            if self.timer.deadline() != self.period_end {
                self.timer.as_mut().reset(self.period_end);
            }
            ready!(self.timer.as_mut().poll(context));
        }
        Poll::Ready(())
    }

    fn start_period_if_due(&mut self) -> bool {
        let now = Instant::now();
        let is_due = now >= self.period_end;
        if is_due {
            (self.period_end, self.n_reads) = (now + PERIOD, 0);
        }
        is_due
    }
}

impl AsyncRead for BatchedReads {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        out: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.start == self.end {
            ready!(self.poll_fill(context))?;
        }
        let end = self.end.min(self.start + out.remaining());
        out.put_slice(&self.buffer[self.start..end]);
        self.start = end;
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for BatchedReads {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.socket.try_now(|stream| stream.write(bytes)) {
            Some(written) => Poll::Ready(written),
            None => self.socket.registered()?.poll_write(context, bytes),
        }
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.socket.try_now(|stream| stream.write_vectored(parts)) {
            Some(written) => Poll::Ready(written),
            None => self.socket.registered()?.poll_write_vectored(context, parts),
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    /// A socket writes at once.
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &self.socket {
            Socket::Periodic(stream) => Poll::Ready(stream.shutdown(Shutdown::Write)),
            _ => self.socket.registered()?.poll_shutdown(context),
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use super::*;

    async fn connected() -> (BatchedReads, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stream, accepted) = tokio::join!(TcpStream::connect(address), listener.accept());
        let (peer, _) = accepted.unwrap();
        (BatchedReads::new(stream.unwrap()), peer)
    }

    /// The clock of these tests stands still while something happens, so that all reads are in one period.
    async fn connected_and_periodic() -> (BatchedReads, TcpStream) {
        let (mut socket, mut peer) = connected().await;
        for nth in 0..=N_READS_MAX as u8 {
            assert!(matches!(socket.socket, Socket::OnArrival(_)), "{nth}");
            peer.write_all(&[nth]).await.unwrap();
            assert_eq!(socket.read_u8().await.unwrap(), nth);
        }
        assert!(matches!(socket.socket, Socket::Periodic(_)));
        (socket, peer)
    }

    #[tokio::test(start_paused = true)]
    async fn much_data_is_read_periodically_until_nothing_arrives() {
        let (mut socket, mut peer) = connected_and_periodic().await;
        let (mut first, mut second) = ([0; 2], [0; 3]);
        for part in [b"ab", b"cd"] {
            peer.write_all(part).await.unwrap();
        }
        // What does not fit stays in the buffer.
        socket.read_exact(&mut first).await.unwrap();
        let mut later = async || {
            tokio::time::sleep(10 * PERIOD).await;
            peer.write_all(b"e").await.unwrap();
        };
        let (read, ()) = tokio::join!(socket.read_exact(&mut second), later());
        assert_eq!((read.unwrap(), &first, &second), (3, b"ab", b"cde"));
        assert!(matches!(socket.socket, Socket::OnArrival(_)));
    }

    #[tokio::test(start_paused = true)]
    async fn all_bytes_arrive_in_order_in_both_directions() {
        let (socket, peer) = connected_and_periodic().await;
        let sent: Vec<u8> = (0..20 * BUFFER_LEN).map(|at| (at % 251) as u8).collect();
        // Neither side reads before it has written so much that it must wait.
        let exchange = async |mut stream: Pin<Box<dyn crate::dial::Stream>>| {
            let (mut reader, mut writer) = tokio::io::split(&mut stream);
            let mut received = vec![0; sent.len()];
            let (written, read) =
                tokio::join!(writer.write_all(&sent), reader.read_exact(&mut received));
            written.unwrap();
            read.unwrap();
            assert!(received == sent);
        };
        tokio::join!(exchange(Box::pin(socket)), exchange(Box::pin(peer)));
    }

    #[tokio::test(start_paused = true)]
    async fn the_end_of_a_stream_is_read() {
        let check = async |(mut socket, mut peer): (BatchedReads, TcpStream)| {
            peer.write_all(b"end").await.unwrap();
            drop(peer);
            let mut all = Vec::new();
            socket.read_to_end(&mut all).await.unwrap();
            assert_eq!(all, b"end");
            socket.shutdown().await.unwrap();
        };
        check(connected().await).await;
        check(connected_and_periodic().await).await;
    }
}
