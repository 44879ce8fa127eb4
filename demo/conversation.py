"""What the person in the demo says: one trip, planned in forty turns with names, numbers and a booking code.

Words only. Each turn states a fact or two and asks something small, so that the answers stay short and the
conversation grows by some seventy tokens a turn; the last turns ask for facts from the first ones.
"""

from __future__ import annotations

SYSTEM = "You are a helpful travel assistant. Answer the last question in one short sentence."

TURNS: tuple[str, ...] = (
    "Hello! My name is Martha Lindley and I am planning nine days in Scotland with my son Felix. What should we pack?",
    "We arrive in Edinburgh on Saturday 9 May at 14:20 with train IC 1327. What can we do on the first evening?",
    "Our hotel is the Mill House, 88 Hope Street, booking code QX7-41LM. What do people ask at a hotel desk?",
    "The budget is 1,860 pounds and the hotel takes 640 of it. How can a family save money on a trip?",
    "Felix is eleven and loves trams, old maps and anything that swims. What is a good plan for a rainy day?",
    "I do not eat meat and Felix must not have peanuts. Which simple dinner is right for both of us?",
    "On Sunday we want to walk up Arthur's Seat. What should we carry in the bag?",
    "The harbour boat costs 18 pounds for me and 9 for Felix and leaves at 10:30. What can we see from a boat?",
    "On Monday I have a call with my colleague Bennett from 9 to 10. What can Felix do in that hour?",
    "There is an old bookshop with a red staircase near the castle. Which book would a boy of eleven like?",
    "On Tuesday we take train 523 at 11:52 to Perth, coach 21, seats 45 and 46. What is a good lunch on a train?",
    "In Perth we sleep at Cross Keys, room 12, for 74 pounds a night. What makes a small inn pleasant?",
    "Felix wants to see the old library where bats live in the roof. What do bats eat?",
    "The library lets us in at 15:40 on Wednesday, order number 5530-C. Why should visitors be quiet there?",
    "My sister Olivia may join us in Perth with her dog Pixel. What does a small dog need on a hot day?",
    "If Olivia comes we need a third bed for 22 pounds a night. What is polite to say to the host?",
    "I would like to write three postcards a day. What is a nice first line for a postcard?",
    "On Thursday we go on to Inverness by bus at 9:15 from platform 4. Which games can we play on a bus?",
    "The flat in Inverness is on the third floor of 5 Blind Lane, door code 7719. How do we keep a code safe?",
    "The steam train is famous but full, so we take the small one from Aviemore. What is fun about steam trains?",
    "On Friday we visit the aquarium, 25 pounds for me and 15 for Felix. Which animal should we look at first?",
    "Felix asks whether sea otters hold hands while they sleep. What is the answer?",
    "My doctor says I should not walk more than 8 kilometres a day because of my knee. How do we save steps?",
    "For the knee I carry a blue pack of cream and take two tablets a day. When is the best time for cream?",
    "So far we have spent 412 pounds and I write every sum into a green notebook. Why is that a good habit?",
    "On Saturday we want a beach. Nairn is 20 minutes by train, 4.30 pounds each way. What do we bring?",
    "The sea has 10 degrees in May. Is that warm enough for swimming?",
    "Olivia has just written that she comes on Wednesday at 12:05 with coach RE 88. How can we welcome her?",
    "Pixel may not enter the library, so Olivia waits in the garden. What could she read there?",
    "On Sunday evening there is a fiddle concert at the Black Swan, two seats, 36 pounds. What is a fiddle?",
    "Felix finds slow songs too sad. What cheerful thing can we do after the concert?",
    "We go home on Sunday 17 May at 21:10 with train IC 1332. When should we leave the flat?",
    "Our neighbour, Mr Okafor, waters our tomatoes meanwhile. Which present would please him?",
    "I found a tile with a blue swallow for 14 pounds. How do I wrap a tile so that it does not break?",
    "Bennett has moved our call to Monday 11 o'clock. What is a short and polite reply to him?",
    "We have 310 pounds left for the last three days. What should we spend it on?",
    "Felix has drawn a map of all nine days. What is a good title for his map?",
    "Let us check what you still know. What is the name of my son?",
    "What is the booking code of the Mill House in Edinburgh?",
    "Thank you, that was lovely. What do you wish Felix, Olivia, Pixel and me?",
)

RECALL = (37, 38)
"""Places in TURNS (from 0) of the two questions that only somebody who still has the first turns can answer."""
