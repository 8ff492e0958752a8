//! Acquires and releases for a number of seconds; prints the number of cycles and the seconds, as JSON.
//!
//! `bench_worker URL TASKS SECONDS`: each task has a lock of its own.

use std::time::{Duration, Instant};

use dibs::Client;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), dibs::Error> {
    let words: Vec<String> = std::env::args().collect();
    let (tasks, limit): (usize, f64) = (words[2].parse().unwrap(), words[3].parse().unwrap());
    let client = Client::connect(&words[1])?;
    let (began, limit) = (Instant::now(), Duration::from_secs_f64(limit));
    let running: Vec<_> = (0..tasks)
        .map(|number| {
            let lock = client.lock(format!("bench/rust-{number}"));
            tokio::spawn(async move {
                let mut cycles = 0;
                while began.elapsed() < limit {
                    lock.acquire().await?.release().await?;
                    cycles += 1;
                }
                Ok::<u64, dibs::Error>(cycles)
            })
        })
        .collect();
    let mut cycles = 0;
    for each in running {
        cycles += each.await.expect("no task panics")?;
    }
    println!("{{\"cycles\": {cycles}, \"seconds\": {}}}", began.elapsed().as_secs_f64());
    Ok(())
}
