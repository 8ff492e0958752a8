//! Hold a lock while a task works, and stop the task if the lock is lost.
//!
//! `DIBS_URL=http://127.0.0.1:5327 DIBS_API_KEY=dibs_… cargo run --example exclusive`

use std::time::Duration;

async fn report(token: u64) {
    println!("working with token {token}");
    tokio::time::sleep(Duration::from_millis(200)).await;
}

#[tokio::main]
async fn main() -> Result<(), dibs::Error> {
    let url = std::env::var("DIBS_URL").unwrap_or("http://127.0.0.1:5327".into());
    let client = dibs::Client::connect(url)?;
    let lock = client.lock("examples/report").ttl(Duration::from_secs(10)).note("example");
    let lease = match lock.wait(Duration::from_secs(5)).acquire().await {
        Err(error) if error.is_held() => {
            println!("{error}");
            return Ok(());
        }
        found => found?,
    };
    lease.run(report(lease.token())).await?;
    lease.release().await
}
