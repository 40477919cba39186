//! Tests of `/debug/pprof/profile`. One test, because a process has one profiler.

use std::hint::black_box;
use std::io::Read as _;
use std::sync::atomic::{AtomicBool, Ordering};

use flate2::read::GzDecoder;
use prost::Message as _;
use tokio::task::spawn_blocking;

use super::*;
use crate::serve::pprof_format::ProfileMessage;

const IN_USE: &str = "Could not enable CPU profiling: cpu profiling already in use\n";

/// Keeps a processor busy until it is told to stop.
#[inline(never)]
fn keep_busy(stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        black_box((0..1_000_000_u64).fold(0, |a: u64, b| black_box(a.wrapping_add(b))));
    }
}

/// Stops [`keep_busy`], also if the test fails: the runtime waits for its thread.
struct StopOnDrop(Arc<AtomicBool>);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[tokio::test]
async fn a_profile_has_samples_of_what_runs() {
    let server = serve(&[OPEN, "--profiling"], |_| ()).await;
    let too_long = get(&server, "/debug/pprof/profile?seconds=301").await;
    assert_eq!(too_long, (400, "profile duration exceeds 300 seconds\n".to_owned()));
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = stop.clone();
    let stop = StopOnDrop(stop);
    let busy = spawn_blocking(move || keep_busy(&stopped));

    // A client that goes away: until it does, there is no other profile.
    let short =
        async || request_bytes(&server, "GET /debug/pprof/profile?seconds=1", "", None).await;
    let start_long = async || {
        let mut stream = connect(&server, "localhost", b"http/1.1", None).await;
        let long = "GET /debug/pprof/profile?seconds=300 HTTP/1.1\r\nHost: localhost\r\n\r\n";
        stream.write_all(long.as_bytes()).await.unwrap();
        stream
    };
    let long_is_running = async {
        loop {
            let stream = start_long().await;
            let (head, body) = short().await;
            // Else the short one came first.
            if status_of(&head) == 500 {
                return (stream, head, body);
            }
        }
    };
    let (stream, head, body) = timeout(TEST_TIMEOUT, long_is_running).await.unwrap();
    assert_eq!(String::from_utf8(body).unwrap(), IN_USE);
    assert!(head.contains("x-go-pprof: 1"), "{head}");
    drop(stream);
    let next_is_done = async {
        loop {
            let (head, body) = short().await;
            if status_of(&head) == 200 {
                return (head, body);
            }
        }
    };
    let (head, body) = timeout(TEST_TIMEOUT, next_is_done).await.unwrap();
    drop(stop);
    busy.await.unwrap();

    assert!(head.contains("content-type: application/octet-stream"), "{head}");
    assert!(head.contains("content-disposition: attachment; filename=\"profile\""), "{head}");
    let mut bytes = Vec::new();
    GzDecoder::new(body.as_slice()).read_to_end(&mut bytes).unwrap();
    let profile = ProfileMessage::decode(bytes.as_slice()).unwrap();
    let text = |number: i64| profile.string_table[number as usize].as_str();
    let types: Vec<_> =
        profile.sample_type.iter().map(|it| (text(it.kind), text(it.unit))).collect();
    assert_eq!(types, [("samples", "count"), ("cpu", "nanoseconds")]);
    assert!(profile.duration_nanos >= 1_000_000_000, "{}", profile.duration_nanos);
    let program = std::env::current_exe().unwrap();
    assert_eq!(text(profile.mapping[0].filename), program.to_str().unwrap());
    let busy_ids: Vec<u64> = profile
        .function
        .iter()
        .filter(|it| text(it.name).ends_with("keep_busy"))
        .map(|it| it.id)
        .collect();
    let is_busy = |id: &u64| {
        let location = profile.location.iter().find(|it| it.id == *id).unwrap();
        location.line.iter().any(|line| busy_ids.contains(&line.function_id))
    };
    let samples = profile.sample.iter().filter(|it| it.location_id.iter().any(is_busy));
    assert!(samples.map(|it| it.value[0]).sum::<i64>() > 0, "{busy_ids:?}");
    server.shutdown().await;
}
