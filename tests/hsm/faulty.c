/* A PKCS#11 module in front of another that can fail as SoftHSM cannot: while a file is there, calls do not return, results are
 * wrong, or sessions are lost once. It notes each login and which threads sign. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { LOGIN = 18, SIGN_INIT = 42, SIGN = 43, FUNCTIONS = 68 };
enum { SESSION_HANDLE_INVALID = 0xB3 };

struct list {
    unsigned char version[2];
    void *functions[FUNCTIONS];
};
typedef unsigned long (*get_list)(struct list **);
typedef unsigned long (*login)(unsigned long, unsigned long, unsigned char *, unsigned long);
typedef unsigned long (*sign_init)(unsigned long, void *, unsigned long);
typedef unsigned long (*sign)(unsigned long, unsigned char *, unsigned long, unsigned char *, unsigned long *);

static struct list ours, *theirs;

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

static unsigned long faulty_login(unsigned long session, unsigned long user, unsigned char *pin, unsigned long length) {
    note("logins");
    return ((login)theirs->functions[LOGIN])(session, user, pin, length);
}

static unsigned long faulty_sign_init(unsigned long session, void *mechanism, unsigned long key) {
    if (unlink(file("lose")) == 0) return SESSION_HANDLE_INVALID;
    return ((sign_init)theirs->functions[SIGN_INIT])(session, mechanism, key);
}

static unsigned long faulty_sign(unsigned long session, unsigned char *data, unsigned long length, unsigned char *out,
                                 unsigned long *out_length) {
    while (access(file("hang"), F_OK) == 0) usleep(10000);
    unsigned long result = ((sign)theirs->functions[SIGN])(session, data, length, out, out_length);
    if (out) note("signers");
    if (out && result == 0 && access(file("err"), F_OK) == 0) out[17] ^= 1;
    return result;
}

unsigned long C_GetFunctionList(struct list **list) {
    void *module = dlopen(getenv("FAULTY_MODULE"), RTLD_NOW);
    get_list get = module ? (get_list)dlsym(module, "C_GetFunctionList") : 0;
    if (!get || get(&theirs) != 0) return 5;
    ours = *theirs;
    ours.functions[LOGIN] = faulty_login;
    ours.functions[SIGN_INIT] = faulty_sign_init;
    ours.functions[SIGN] = faulty_sign;
    *list = &ours;
    return 0;
}
