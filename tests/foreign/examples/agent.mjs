// tests/foreign/examples/agent.mjs: a page through the agent, with undici. Node's own fetch takes no proxy in Node 20.
//
//     npm install undici; node agent.mjs http://127.0.0.1:8118 https://example.com/
import { ProxyAgent, fetch } from 'undici';

const [agent, url] = process.argv.slice(2);
const response = await fetch(url, { dispatcher: new ProxyAgent(agent) });
console.log(await response.text());
