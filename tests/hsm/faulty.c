/* A PKCS#11 module in front of another that can fail as SoftHSM cannot: while a file is there, calls do not return, results are
 * wrong, keys may not sign, no key is made, one call is caught, or sessions are lost once; the file `limit` has the number of
 * sessions that it accepts.
 * It notes each login, each closed session, which threads sign, and which calls are refused or wait. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { FINALIZE = 1, OPEN = 12, CLOSE = 13, LOGIN = 18, SIGN_INIT = 42, SIGN = 43, MAKE = 59, FUNCTIONS = 68 };
enum { GENERAL_ERROR = 5, KEY_FUNCTION_NOT_PERMITTED = 0x68, SESSION_COUNT = 0xB1, SESSION_HANDLE_INVALID = 0xB3 };

struct list {
    unsigned char version[2];
    void *functions[FUNCTIONS];
};
typedef unsigned long (*get_list)(struct list **);
typedef unsigned long (*finalize)(void *);
typedef unsigned long (*open_session)(unsigned long, unsigned long, void *, void *, unsigned long *);
typedef unsigned long (*close_session)(unsigned long);
typedef unsigned long (*login)(unsigned long, unsigned long, unsigned char *, unsigned long);
typedef unsigned long (*sign_init)(unsigned long, void *, unsigned long);
typedef unsigned long (*sign)(unsigned long, unsigned char *, unsigned long, unsigned char *, unsigned long *);
typedef unsigned long (*make)(unsigned long, void *, void *, unsigned long, void *, unsigned long, unsigned long *, unsigned long *);

static struct list ours, *theirs;
static int sessions;

static const char *file(const char *name) {
    static __thread char path[4096];
    snprintf(path, sizeof path, "%s/%s", getenv("FAULTY_HOME"), name);
    return path;
}

static void note(const char *name) {
    FILE *notes = fopen(file(name), "a");
    if (notes) {
        fprintf(notes, "%d\n", (int)gettid());
        fclose(notes);
    }
}

static int is(const char *fault) {
    return access(file(fault), F_OK) == 0;
}

static unsigned long noted_finalize(void *reserved) {
    sessions = 0;
    return ((finalize)theirs->functions[FINALIZE])(reserved);
}

static unsigned long limited_open(unsigned long slot, unsigned long flags, void *data, void *notify, unsigned long *session) {
    int limit = 1000;
    FILE *limits = fopen(file("limit"), "r");
    if (limits) {
        if (fscanf(limits, "%d", &limit) != 1) abort();
        fclose(limits);
    }
    if (__atomic_add_fetch(&sessions, 1, __ATOMIC_SEQ_CST) > limit) {
        __atomic_sub_fetch(&sessions, 1, __ATOMIC_SEQ_CST);
        return SESSION_COUNT;
    }
    return ((open_session)theirs->functions[OPEN])(slot, flags, data, notify, session);
}

static unsigned long noted_close(unsigned long session) {
    note("closed");
    __atomic_sub_fetch(&sessions, 1, __ATOMIC_SEQ_CST);
    return ((close_session)theirs->functions[CLOSE])(session);
}

static unsigned long faulty_login(unsigned long session, unsigned long user, unsigned char *pin, unsigned long length) {
    note("logins");
    return ((login)theirs->functions[LOGIN])(session, user, pin, length);
}

static unsigned long faulty_sign_init(unsigned long session, void *mechanism, unsigned long key) {
    if (unlink(file("lose")) == 0) return SESSION_HANDLE_INVALID;
    if (is("break")) return GENERAL_ERROR;
    if (is("refuse")) {
        note("refused");
        return KEY_FUNCTION_NOT_PERMITTED;
    }
    return ((sign_init)theirs->functions[SIGN_INIT])(session, mechanism, key);
}

static unsigned long faulty_sign(unsigned long session, unsigned char *data, unsigned long length, unsigned char *out,
                                 unsigned long *out_length) {
    if (unlink(file("catch")) == 0) {
        note("caught"); /* it returns when this file is gone */
        while (is("caught")) usleep(10000);
    }
    if (is("hang")) note("hung");
    while (is("hang")) usleep(10000);
    unsigned long result = ((sign)theirs->functions[SIGN])(session, data, length, out, out_length);
    if (out) note("signers");
    if (out && result == 0 && is("err")) out[17] ^= 1;
    return result;
}

static unsigned long slow_make(unsigned long session, void *mechanism, void *public, unsigned long publics, void *private,
                               unsigned long privates, unsigned long *public_key, unsigned long *private_key) {
    if (is("slow")) note("making");
    while (is("slow")) usleep(10000);
    return ((make)theirs->functions[MAKE])(session, mechanism, public, publics, private, privates, public_key, private_key);
}

unsigned long C_GetFunctionList(struct list **list) {
    void *module = dlopen(getenv("FAULTY_MODULE"), RTLD_NOW);
    get_list get = module ? (get_list)dlsym(module, "C_GetFunctionList") : 0;
    if (!get || get(&theirs) != 0) return 5;
    ours = *theirs;
    ours.functions[FINALIZE] = noted_finalize;
    ours.functions[OPEN] = limited_open;
    ours.functions[CLOSE] = noted_close;
    ours.functions[LOGIN] = faulty_login;
    ours.functions[SIGN_INIT] = faulty_sign_init;
    ours.functions[SIGN] = faulty_sign;
    ours.functions[MAKE] = slow_make;
    *list = &ours;
    return 0;
}
