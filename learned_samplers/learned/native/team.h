// Threads that share the blocks of a step. They live for one call: nothing of them is left over for a fork or an exit.
#pragma once

#include <atomic>
#include <functional>
#include <system_error>
#include <thread>
#include <vector>

#include "vectors.h"

class Team {
    std::vector<std::thread> others;
    std::function<void(int64_t)> task;
    std::atomic<int64_t> next{0}, count{0};
    std::atomic<int> round{0}, busy{0};
    bool over = false;

    void work() {
        for (int64_t i; (i = next.fetch_add(1)) < count.load();) task(i);
    }

    // Rounds follow one another within microseconds: waiting threads look again and again before they let others run.
    template <typename Condition>
    static void wait(Condition met) {
        for (int tries = 0; !met(); tries++)
            if (tries > 1000) std::this_thread::yield();
    }

    void follow() {
        FlushToZero mode;
        for (int seen = 0;;) {
            wait([&] { return round.load() != seen; });
            seen = round.load();
            if (over) return;
            work();
            busy.fetch_sub(1);
        }
    }

  public:
    explicit Team(int threads) {
        try {
            for (int i = 1; i < threads; i++) others.emplace_back([this] { follow(); });
        } catch (const std::system_error &) {  // the system gives no more threads: those there are do it all
        }
    }

    ~Team() {
        over = true;
        round.fetch_add(1);
        for (auto &thread : others) thread.join();
    }

    // task(0), …, task(n − 1), in any order and on any thread; returns when all are done.
    template <typename Task>
    void each(int64_t n, Task &&each_task) {
        if (others.empty() || n < 2) {
            for (int64_t i = 0; i < n; i++) each_task(i);
            return;
        }
        task = std::ref(each_task);
        next = 0, count = n, busy = static_cast<int>(others.size());
        round.fetch_add(1);
        work();
        wait([&] { return busy.load() == 0; });
    }
};
