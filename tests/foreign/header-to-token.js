// The whole of privacypass-ts's own client: from the value of an Authenticate field to that of an Authorization field.

import { header_to_token } from '@cloudflare/privacypass-ts';

console.log(Buffer.from(await header_to_token(process.argv[2]), 'base64url').toString());
