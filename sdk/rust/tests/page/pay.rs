//! Pay an order while nobody else does.

use std::time::Duration;

async fn pay(order: u32, token: u64) {
    println!("order {order} is paid, with token {token}");
}

#[tokio::main]
async fn main() -> Result<(), dibs::Error> {
    let url = std::env::var("DIBS_URL").expect("DIBS_URL");
    let client = dibs::Client::connect(url)?;
    let lock = client.lock("jobs/order:42").ttl(Duration::from_secs(30));
    let lease = lock.wait(Duration::from_secs(5)).acquire().await?;
    lease.run(pay(42, lease.token())).await?;
    lease.release().await
}
