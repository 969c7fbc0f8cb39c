const field = (id) => document.getElementById(id);
const settings = ['gateway', 'issuer', 'key'];

async function show() {
    const found = await browser.storage.local.get();
    field('state').value = `${found.tokens?.length ?? 0} tokens, ${found.used ?? 0} used. ${found.trouble ?? ''}`;
    return found;
}

document.forms[0].addEventListener('submit', (event) => {
    event.preventDefault();
    browser.runtime.sendMessage(Object.fromEntries(settings.map((id) => [id, field(id).value])));
});
browser.storage.onChanged.addListener(show);
show().then((found) => settings.forEach((id) => (field(id).value = found[id] ?? '')));
