use super::*;
use tokio::io::AsyncWriteExt;

#[tokio::test]
async fn an_answer_that_is_there_before_the_request_is_written_counts() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let gateway = Arc::new(Gateway::new(&url, &GatewayConfig::at(&url)).unwrap());
    let connection = gateway.dial().await.unwrap();
    let (mut stream, _) = listener.accept().await.unwrap();
    stream.write_all(b"HTTP/1.1 503 No\r\nRetry-After: 7\r\n\r\n").await.unwrap();
    stream.shutdown().await.unwrap();
    let target = Target::parse("target.example:443", None).unwrap();
    let Ok(Answer::Refused(refused)) = connection.connect(&target, None).await else { panic!("no answer") };
    assert_eq!((refused.status.as_u16(), refused.headers["retry-after"].to_str().unwrap()), (503, "7"));
}
